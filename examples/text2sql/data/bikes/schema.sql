CREATE TABLE stations (
    station_id INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    district   TEXT NOT NULL,            -- 'Centre', 'East', 'West' or 'Riverside'
    docks      INTEGER NOT NULL          -- bikes it can hold
);
CREATE TABLE bikes (
    bike_id    INTEGER PRIMARY KEY,
    model      TEXT NOT NULL,            -- 'city', 'cargo' or 'electric'
    bought_on  TEXT NOT NULL,            -- date, YYYY-MM-DD
    station_id INTEGER REFERENCES stations (station_id)  -- where it stands; NULL while in the workshop
);
CREATE TABLE riders (
    rider_id   INTEGER PRIMARY KEY,
    name       TEXT NOT NULL,
    plan       TEXT NOT NULL,            -- 'day', 'month' or 'year'
    birth_year INTEGER NOT NULL
);
CREATE TABLE trips (
    trip_id       INTEGER PRIMARY KEY,
    bike_id       INTEGER NOT NULL REFERENCES bikes (bike_id),
    rider_id      INTEGER NOT NULL REFERENCES riders (rider_id),
    from_station  INTEGER NOT NULL REFERENCES stations (station_id),
    to_station    INTEGER NOT NULL REFERENCES stations (station_id),
    started_at    TEXT NOT NULL,         -- YYYY-MM-DD HH:MM
    minutes       INTEGER NOT NULL,      -- duration
    km            REAL NOT NULL
);
CREATE TABLE repairs (
    repair_id   INTEGER PRIMARY KEY,
    bike_id     INTEGER NOT NULL REFERENCES bikes (bike_id),
    reported_on TEXT NOT NULL,           -- date, YYYY-MM-DD
    part        TEXT NOT NULL,           -- 'brake', 'chain', 'tyre', 'light' or 'battery'
    cost        REAL                     -- euros; NULL while the repair is not finished
);
