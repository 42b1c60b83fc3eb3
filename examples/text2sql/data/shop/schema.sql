CREATE TABLE categories (
    category_id INTEGER PRIMARY KEY,
    name        TEXT NOT NULL UNIQUE     -- e.g. 'Kitchen', 'Garden'
);
CREATE TABLE products (
    product_id  INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    category_id INTEGER NOT NULL REFERENCES categories (category_id),
    list_price  REAL NOT NULL,           -- euros, today's price
    stock       INTEGER NOT NULL         -- pieces on hand; 0 is sold out
);
CREATE TABLE customers (
    customer_id INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    country     TEXT NOT NULL,           -- ISO code: 'DE', 'FR', 'IT', 'ES' or 'PL'
    segment     TEXT NOT NULL,           -- 'private' or 'business'
    joined_on   TEXT NOT NULL            -- date, YYYY-MM-DD
);
CREATE TABLE orders (
    order_id    INTEGER PRIMARY KEY,
    customer_id INTEGER NOT NULL REFERENCES customers (customer_id),
    ordered_on  TEXT NOT NULL,           -- date, YYYY-MM-DD
    shipped_on  TEXT,                    -- date; NULL while the order is open
    status      TEXT NOT NULL            -- 'open', 'shipped' or 'cancelled'
);
CREATE TABLE order_items (
    order_id   INTEGER NOT NULL REFERENCES orders (order_id),
    product_id INTEGER NOT NULL REFERENCES products (product_id),
    quantity   INTEGER NOT NULL,
    unit_price REAL NOT NULL,            -- euros paid per piece, may be below the list price
    PRIMARY KEY (order_id, product_id)
);
CREATE TABLE returns (
    return_id   INTEGER PRIMARY KEY,
    order_id    INTEGER NOT NULL REFERENCES orders (order_id),
    product_id  INTEGER NOT NULL REFERENCES products (product_id),
    returned_on TEXT NOT NULL,           -- date, YYYY-MM-DD
    reason      TEXT NOT NULL            -- 'damaged', 'wrong item' or 'changed mind'
);
