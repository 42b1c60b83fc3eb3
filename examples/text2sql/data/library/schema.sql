CREATE TABLE branches (
    branch_id INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,      -- 'Central', 'Harbour' or 'Hill'
    opened    INTEGER NOT NULL           -- year
);
CREATE TABLE authors (
    author_id INTEGER PRIMARY KEY,
    name      TEXT NOT NULL,
    country   TEXT NOT NULL,             -- e.g. 'Norway', 'Chile'
    born      INTEGER NOT NULL           -- year
);
CREATE TABLE books (
    book_id   INTEGER PRIMARY KEY,
    title     TEXT NOT NULL,
    author_id INTEGER NOT NULL REFERENCES authors (author_id),
    genre     TEXT NOT NULL,             -- 'novel', 'poetry', 'history', 'science' or 'children'
    published INTEGER NOT NULL,          -- year
    pages     INTEGER NOT NULL
);
CREATE TABLE copies (
    copy_id   INTEGER PRIMARY KEY,
    book_id   INTEGER NOT NULL REFERENCES books (book_id),
    branch_id INTEGER NOT NULL REFERENCES branches (branch_id),
    condition TEXT NOT NULL              -- 'good', 'worn' or 'lost'
);
CREATE TABLE members (
    member_id INTEGER PRIMARY KEY,
    name      TEXT NOT NULL,
    kind      TEXT NOT NULL,             -- 'adult', 'student' or 'child'
    joined_on TEXT NOT NULL              -- date, YYYY-MM-DD
);
CREATE TABLE loans (
    loan_id     INTEGER PRIMARY KEY,
    copy_id     INTEGER NOT NULL REFERENCES copies (copy_id),
    member_id   INTEGER NOT NULL REFERENCES members (member_id),
    lent_on     TEXT NOT NULL,           -- date, YYYY-MM-DD
    due_on      TEXT NOT NULL,           -- date, YYYY-MM-DD
    returned_on TEXT                     -- date; NULL while the copy is still out
);
