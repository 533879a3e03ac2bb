import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Timestamp;
import java.time.LocalDate;
import java.time.ZoneOffset;
import java.util.Properties;

/** What a BI tool does with the driver. Prints a line for each thing, which the test compares. */
public class TrinoJdbc {
    static final String ENDLESS = "SELECT count(*) FROM orders a, orders b, orders c, orders d "
            + "WHERE a.order_id + b.order_id + c.order_id + d.order_id = -1";

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "ann");
        properties.setProperty("timezone", "UTC");
        String url = "jdbc:trino://127.0.0.1:" + arguments[0] + "/lake/silver";
        if (arguments.length > 1) {
            properties.setProperty("explicitPrepare", arguments[1]);
        }
        try (Connection connection = DriverManager.getConnection(url, properties)) {
            metadata(connection.getMetaData());
            queries(connection);
            cancel(connection);
        }
    }

    static void metadata(DatabaseMetaData data) throws SQLException {
        say("version", data.getDatabaseProductVersion());
        list("catalogs", data.getCatalogs(), "TABLE_CAT");
        list("schemas", data.getSchemas("lake", null), "TABLE_SCHEM");
        String[] kinds = {"TABLE"};
        list("tables", data.getTables("lake", "silver", "%", kinds), "TABLE_NAME", "TABLE_TYPE");
        list("columns", data.getColumns("lake", "silver", "orders", "%"),
                "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "ORDINAL_POSITION");
        list("table types", data.getTableTypes(), "TABLE_TYPE");
        list("keys", data.getPrimaryKeys("lake", "silver", "orders"), "COLUMN_NAME");
        list("procedures", data.getProcedures("lake", null, null), "PROCEDURE_NAME");
        list("functions", data.getUDTs("lake", null, null, null), "TYPE_NAME");
        try (ResultSet types = data.getTypeInfo()) {
            int count = 0;
            while (types.next()) {
                count++;
            }
            say("types", count > 10);
        }
    }

    static void queries(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            list("rows", statement.executeQuery("SELECT order_id, amount, note FROM orders "
                    + "WHERE ordered_at >= current_date AND order_id < 3 ORDER BY order_id"),
                    "order_id", "amount", "note");
            ResultSet moment = statement.executeQuery("SELECT ordered_at FROM orders "
                    + "WHERE ordered_at >= current_date AND order_id = 1");
            moment.next();
            say("moment", moment.getTimestamp(1).toInstant());
            list("unnamed", statement.executeQuery("SELECT count(*) FROM orders"), "_col0");
            ResultSet all = statement.executeQuery("SELECT a.order_id, b.note FROM orders a, orders b "
                    + "WHERE a.ordered_at >= current_date - INTERVAL '6' DAY "
                    + "AND b.ordered_at >= current_date - INTERVAL '6' DAY");
            long sum = 0;
            while (all.next()) {
                sum += all.getLong(1);
            }
            say("sum", sum);
            try {
                statement.executeQuery("SELECT * FROM nope");
            } catch (SQLException error) {
                say("error", error.getErrorCode());
            }
        }
        String sql = "SELECT customer_id, amount AS t FROM orders JOIN customers USING (customer_id) "
                + "WHERE city = ? AND amount > ? AND ordered_at >= ? AND order_id < 10";
        try (PreparedStatement statement = connection.prepareStatement(sql)) {
            ResultSetMetaData described = statement.getMetaData();
            say("described", described.getColumnName(1) + " " + described.getColumnTypeName(2));
            say("parameters", statement.getParameterMetaData().getParameterCount());
            statement.setString(1, "Zürich");
            statement.setBigDecimal(2, new BigDecimal("0.03"));
            statement.setDate(3, Date.valueOf(LocalDate.now(ZoneOffset.UTC)));
            list("prepared", statement.executeQuery(), "customer_id", "t");
        }
        try (PreparedStatement statement = connection.prepareStatement("SELECT ? AS moment")) {
            statement.setTimestamp(1, Timestamp.valueOf("2030-01-01 00:00:00.123"));
            list("parameter", statement.executeQuery(), "moment");
        }
        connection.setSchema("gold");
        try (Statement statement = connection.createStatement()) {
            list("revenue", statement.executeQuery("SELECT day, revenue FROM revenue "
                    + "WHERE day >= current_date"), "day", "revenue");
            say("use", statement.execute("USE lake.silver"));
            list("orders", statement.executeQuery("SELECT max(order_id) AS top FROM orders"), "top");
            statement.execute("SET SESSION query_max_run_time = '9s'");
            list("session", statement.executeQuery("SHOW SESSION LIKE 'query_max_run_time'"), "Value");
        }
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            list("transaction", statement.executeQuery("SELECT 1 AS one"), "one");
        }
        connection.commit();
        connection.setAutoCommit(true);
    }

    static void cancel(Connection connection) throws Exception {
        Statement statement = connection.createStatement();
        Thread thread = new Thread(() -> {
            try {
                Thread.sleep(700);
                statement.cancel();
            } catch (Exception error) {
                throw new RuntimeException(error);
            }
        });
        thread.start();
        try {
            statement.executeQuery(ENDLESS).next();
            say("cancel", "was not cancelled");
        } catch (SQLException error) {
            say("cancel", "cancelled");
        }
        thread.join();
    }

    static void list(String title, ResultSet rows, String... columns) throws SQLException {
        StringBuilder text = new StringBuilder();
        while (rows.next()) {
            text.append(text.length() == 0 ? "" : "; ");
            for (int at = 0; at < columns.length; at++) {
                text.append(at == 0 ? "" : " ").append(line(rows.getString(columns[at])));
            }
        }
        say(title, text);
    }

    static String line(String text) {
        return text == null ? "null" : text.replace('\n', '⏎');
    }

    static void say(String title, Object text) {
        System.out.println(title + ": " + text);
    }
}
