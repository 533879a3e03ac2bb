"""What a query may contain: allow-lists of syntax nodes and functions.

Allow-lists, not deny-lists: a statement, table function or setting is refused until it has been
reviewed and added here.
"""

from __future__ import annotations


def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())


STRUCTURE = _split(
    """
    Select Union Except Intersect Subquery CTE With From Join Where Group Having Qualify Order
    Ordered Limit Offset Fetch Distinct Values Tuple Alias Aliases TableAlias Table Column Star
    Identifier Literal Null Boolean Paren Lateral TableSample WithinGroup Filter Window WindowSpec
    Rollup Cube GroupingSets Interval IntervalSpan DataType DataTypeParam ColumnDef Lambda Bracket
    Slice Dot Var Kwarg PropertyEQ IgnoreNulls RespectNulls HavingMax Parameterless Escape
    Comprehension Version HistoricalData JSONPath JSONPathRoot JSONPathKey JSONPathSubscript
    JSONPathWildcard JSONPathSlice JSONKeyValue HexString BitString ByteString RawString
    UnicodeString National
    """
)
"""Syntax nodes of a query."""

OPERATORS = _split(
    """
    Add Sub Mul Div IntDiv Mod Neg Not And Or Xor EQ NEQ GT GTE LT LTE Is In Between Like ILike
    SimilarTo NullSafeEQ NullSafeNEQ DPipe BitwiseAnd BitwiseOr BitwiseXor BitwiseNot
    BitwiseLeftShift BitwiseRightShift Exists Any All Case If AtTimeZone Collate Overlaps Glob
    RegexpLike RegexpILike ArrayContainsAll ArrayContainedBy ArrayOverlaps
    """
)
"""Operators, and syntax written like an operator."""

FUNCTIONS = _split(
    """
    Abs Acos Acosh AddMonths AnyValue ApproxDistinct ApproxQuantile ArgMax ArgMin Array ArrayAgg
    ArrayAll ArrayAny ArrayAppend ArrayConcat ArrayContains ArrayDistinct ArrayExcept ArrayFilter
    ArrayFirst ArrayIntersect ArrayLast ArrayMax ArrayMin ArrayPosition ArrayPrepend ArrayRemove
    ArrayReverse ArraySize ArraySlice ArraySort ArraySum ArrayToString Ascii Asin Asinh Atan Atan2
    Atanh Avg BitLength BitwiseAndAgg BitwiseCount BitwiseOrAgg BitwiseXorAgg ByteLength Cast Cbrt
    Ceil Chr Coalesce Concat ConcatWs Contains Corr Cos Cosh Cot Count CountIf CovarPop CovarSamp
    CumeDist CurrentDate CurrentDatetime CurrentTime CurrentTimestamp Date DateAdd DateDiff
    DateFromParts DateStrToDate DateSub DateTrunc Datetime DatetimeAdd DatetimeDiff DatetimeSub
    DatetimeTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode Degrees DenseRank
    Encode EndsWith Exp Explode Extract First FirstValue Flatten Floor Format FromBase64
    FromISO8601Date FromISO8601Timestamp GenerateSeries Greatest GroupConcat Grouping Hex Hour
    Initcap IsInf IsNan JSONArray JSONArrayContains JSONExtract JSONExtractArray JSONExtractScalar
    JSONFormat JSONKeys JSONObject JSONType Kurtosis Lag Last LastDay LastValue Lead Least Left
    Length Levenshtein List Ln Localtime Localtimestamp Log LogicalAnd LogicalOr Lower Map
    MapContainsKey MapFromEntries MapKeys MapSize Max MD5 MD5Digest Median Min Minute Mode Month
    Monthname MonthsBetween Normalize NthValue Ntile Nullif NumberToStr Nvl2 Pad ParseJSON
    ParseTime PercentRank PercentileCont PercentileDisc Pi Pow Quantile Quarter Radians Rank Reduce
    RegexpCount RegexpExtract RegexpExtractAll RegexpFullMatch RegexpInstr RegexpReplace
    RegexpSplit RegrAvgx RegrAvgy RegrCount RegrIntercept RegrR2 RegrSlope RegrSxx RegrSxy RegrSyy
    Repeat Replace Reverse Right Round RowNumber SHA SHA2 SafeDivide Second Sign Sin Sinh Skewness
    Split SplitPart Sqrt StartsWith Stddev StddevPop StddevSamp StrPosition StrToDate StrToMap
    StrToTime StrToUnix String Struct StructExtract Substring SubstringIndex Sum Tan Tanh Time
    TimeAdd TimeDiff TimeFromParts TimeStrToDate TimeStrToTime TimeStrToUnix TimeSub TimeToStr
    TimeToTimeStr TimeToUnix TimeTrunc Timestamp TimestampAdd TimestampDiff TimestampFromParts
    TimestampSub TimestampTrunc ToArray ToBase64 ToChar ToDays ToMap ToNumber Transform Translate
    Trim Trunc Try TryCast TsOrDiToDi TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToDateStr
    TsOrDsToDatetime TsOrDsToTime TsOrDsToTimestamp Typeof Unhex Unicode UnixDate UnixMicros
    UnixMillis UnixSeconds UnixToStr UnixToTime UnixToTimeStr Unnest Upper UtcDate UtcTime
    UtcTimestamp VarMap Variance VariancePop Week WeekOfYear WidthBucket Year YearOfWeek
    YearOfWeekIso
    """
)
"""Functions that the parser knows. They depend only on their arguments and the clock."""

ANONYMOUS_FUNCTIONS = _split(
    """
    age bar bit_count century cosine_similarity date_part dayofmonth day_of_month day_of_week
    day_of_year day_name decade element_at epoch epoch_ms epoch_ns epoch_us era erf factorial
    favg from_unixtime from_unixtime_nanos fsum gcd geometric_mean greatest_common_divisor hash
    histogram human_readable_seconds isfinite isodow isoyear is_finite is_infinite is_nan
    jaccard json_array_get json_array_length json_size kahan_sum lcm lgamma list_aggregate
    list_any_value list_avg list_contains list_count list_cosine_similarity list_distinct
    list_element list_extract list_first list_has list_has_all list_has_any list_indexof list_last
    list_max list_median list_min list_position list_reverse_sort list_slice list_sort list_sum
    list_unique list_value list_zip mad make_date make_time make_timestamp map_agg map_concat
    map_entries map_extract map_filter map_from_entries map_keys map_union map_values max_by
    millennium min_by mod month_name multimap_agg now none_match any_match all_match parse_datetime
    product reservoir_quantile rolling_sum row sem slice split_to_map string_agg
    struct_insert struct_pack strptime strftime sumkahan time_bucket timezone today to_days to_hours
    to_iso8601 to_milliseconds to_minutes to_months to_seconds to_unixtime to_years trim_array
    try_strptime unaccent url_decode url_encode url_extract_host url_extract_path
    url_extract_parameter weekday week_of_year xor yearweek year_of_week zip zip_with
    transform_keys transform_values word_stem with_timezone at_timezone date_format date_parse
    entropy mode approx_count_distinct approx_most_frequent checksum bool_and bool_or every
    count_if arbitrary array_join array_sort array_frequency array_average contains_sequence
    combinations ngrams sequence cardinality format_datetime format_number truncate e
    infinity nan is_null typeof starts_with ends_with luhn_check hamming_distance strlen
    """
)
"""Functions that the parser passes through by name."""

JOINS = {
    "kind": frozenset({"", "INNER", "OUTER", "CROSS", "SEMI", "ANTI"}),
    "side": frozenset({"", "LEFT", "RIGHT", "FULL"}),
    "method": frozenset({"", "NATURAL", "ASOF"}),
}
"""Allowed joins. A positional join would reveal how many rows a policy hides."""
