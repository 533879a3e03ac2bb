-- The product list as it stands; the newest row of a product wins.
select
    product_id,
    sku,
    name,
    description,
    category,
    subcategory,
    cast(price as decimal(10, 2)) as price,
    cast(cost as decimal(10, 2)) as cost,
    cast(stock_quantity as integer) as stock_quantity,
    json_extract_string(attributes, '$.color') as color,
    cast(json_extract_string(attributes, '$.weight_kg') as decimal(8, 2)) as weight_kg,
    cast(json_extract_string(attributes, '$.warranty_months') as integer) as warranty_months,
    created_at,
    updated_at
from bronze.raw_products
