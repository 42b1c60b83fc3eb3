CREATE TABLE departments (
    department_id INTEGER PRIMARY KEY,
    name          TEXT NOT NULL UNIQUE,  -- e.g. 'Mathematics', 'Physics'
    building      TEXT NOT NULL          -- 'North', 'South' or 'West'
);
CREATE TABLE teachers (
    teacher_id    INTEGER PRIMARY KEY,
    name          TEXT NOT NULL,
    department_id INTEGER NOT NULL REFERENCES departments (department_id),
    hired_on      TEXT NOT NULL,         -- date, YYYY-MM-DD
    weekly_hours  INTEGER NOT NULL       -- hours under contract; 20 or more is full time
);
CREATE TABLE students (
    student_id  INTEGER PRIMARY KEY,
    name        TEXT NOT NULL,
    grade_level INTEGER NOT NULL,        -- 9 to 12
    city        TEXT NOT NULL,           -- where the student lives
    birth_date  TEXT NOT NULL            -- date, YYYY-MM-DD
);
CREATE TABLE courses (
    course_id     INTEGER PRIMARY KEY,
    title         TEXT NOT NULL,
    department_id INTEGER NOT NULL REFERENCES departments (department_id),
    teacher_id    INTEGER NOT NULL REFERENCES teachers (teacher_id),
    level         TEXT NOT NULL,         -- 'basic' or 'advanced'
    seats         INTEGER NOT NULL       -- most students the course takes in a year
);
CREATE TABLE enrollments (
    student_id INTEGER NOT NULL REFERENCES students (student_id),
    course_id  INTEGER NOT NULL REFERENCES courses (course_id),
    year       INTEGER NOT NULL,         -- 2023 or 2024
    score      REAL,                     -- 0 to 100; NULL while the course is not graded
    PRIMARY KEY (student_id, course_id, year)
);
CREATE TABLE absences (
    absence_id INTEGER PRIMARY KEY,
    student_id INTEGER NOT NULL REFERENCES students (student_id),
    day        TEXT NOT NULL,            -- date, YYYY-MM-DD
    excused    INTEGER NOT NULL          -- 1 if a reason was given, else 0
);
