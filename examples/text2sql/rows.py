"""What do the invented databases hold? Rows drawn from a seed, the same on every machine.

Only `Random.random` is used: the one method whose sequence Python promises to keep between versions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import date, timedelta
from random import Random
from typing import TypeVar

T = TypeVar("T")
Tables = dict[str, Sequence[tuple[object, ...]]]

FIRST = (
    "Ada Bruno Carla Deniz Elif Farid Greta Hugo Ines Jonas Kira Leo Mina Nils Olga Pablo Rosa Samir Tara Uwe"
)
LAST = "Adler Becker Castro Dorn Ekman Fontana Gruber Haas Ito Jensen Koch Lindner Moreau Novak Otero Petrov"
NAMES = [f"{first} {last}" for first in FIRST.split() for last in LAST.split()]


class Draw:
    """Draw from one seeded stream."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed).random

    def below(self, n: int) -> int:
        return int(self._random() * n)

    def between(self, low: int, high: int) -> int:
        """Draw from low to high, both included."""
        return low + self.below(high - low + 1)

    def one(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def some(self, items: Iterable[T], count: int) -> list[T]:
        """Draw `count` different items."""
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in range(min(count, len(left)))]

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def day(self, first: date, last: date) -> date:
        return first + timedelta(days=self.below((last - first).days + 1))


def school(draw: Draw) -> Tables:
    offered = {
        "Mathematics": ["Algebra", "Geometry", "Statistics", "Calculus"],
        "Physics": ["Mechanics", "Optics", "Electricity"],
        "Biology": ["Botany", "Genetics", "Ecology"],
        "History": ["Antiquity", "Modern History"],
        "Languages": ["French", "Spanish", "Japanese", "Latin"],
        "Arts": ["Drawing", "Theatre", "Photography"],
    }
    buildings = ["North", "North", "South", "West", "West", "South"]
    departments = [(i, name, buildings[i - 1]) for i, name in enumerate(offered, 1)]
    teachers = []
    for i, name in enumerate(draw.some(NAMES, 18), 1):
        hired = draw.day(date(2005, 8, 1), date(2023, 8, 1))
        teachers.append((i, name, 1 + (i - 1) % 6, str(hired), draw.between(10, 28)))
    courses = []
    for department, titles in enumerate(offered.values(), 1):
        staff = [teacher[0] for teacher in teachers if teacher[2] == department]
        for nth, title in enumerate(titles):
            level = "advanced" if nth >= 2 else "basic"
            courses.append(
                (len(courses) + 1, title, department, draw.one(staff), level, draw.between(15, 30))
            )
    cities = ["Ashford", "Ashford", "Brookfield", "Brookfield", "Calder", "Dunmore"]
    students, enrollments = [], []
    for i, name in enumerate(draw.some(NAMES, 90), 1):
        grade = draw.between(9, 12)
        born = draw.day(date(2017 - grade, 9, 1), date(2018 - grade, 8, 31))
        students.append((i, name, grade, draw.one(cities), str(born)))
        for year in (2023, 2024):
            for course in draw.some(range(1, len(courses) + 1), draw.between(1, 3)):
                score = None if year == 2024 and draw.chance(0.3) else 40.0 + draw.below(31) + draw.below(31)
                enrollments.append((i, course, year, score))
    absences = []
    for i in range(1, 131):
        day = draw.day(date(2024, 1, 8), date(2024, 6, 28))
        absences.append((i, draw.between(1, 90), str(day), int(draw.chance(0.6))))
    return {
        "departments": departments,
        "teachers": teachers,
        "students": students,
        "courses": courses,
        "enrollments": enrollments,
        "absences": absences,
    }


def shop(draw: Draw) -> Tables:
    sold = {
        "Kitchen": ["Kettle", "Chef Knife", "Cutting Board", "Pan", "Scale", "Grater"],
        "Garden": ["Hose", "Spade", "Rake", "Bird House", "Lantern"],
        "Office": ["Desk Lamp", "Stapler", "Notebook", "Monitor Stand", "Paper Tray"],
        "Sport": ["Yoga Mat", "Skipping Rope", "Dumbbell", "Water Bottle", "Football"],
        "Toys": ["Puzzle", "Kite", "Train Set", "Building Blocks"],
        "Travel": ["Suitcase", "Neck Pillow", "Backpack", "Adapter"],
    }
    products = []
    for category, titles in enumerate(sold.values(), 1):
        for title in titles:
            stock = 0 if draw.chance(0.15) else draw.between(3, 120)
            products.append((len(products) + 1, title, category, draw.between(8, 180) - 0.05, stock))
    customers = []
    for i, name in enumerate(draw.some(NAMES, 80), 1):
        country = draw.one(["DE", "DE", "FR", "IT", "ES", "PL"])
        segment = "business" if draw.chance(0.3) else "private"
        customers.append((i, name, country, segment, str(draw.day(date(2020, 1, 1), date(2023, 12, 31)))))
    orders, items, returns = [], [], []
    for i in range(1, 211):
        placed = draw.day(date(2023, 1, 1), date(2024, 6, 30))
        status = "cancelled" if draw.chance(0.08) else "open" if placed > date(2024, 6, 10) else "shipped"
        sent = placed + timedelta(days=draw.between(1, 9)) if status == "shipped" else None
        orders.append((i, draw.between(1, 72), str(placed), str(sent) if sent else None, status))
        for product, _, _, price, _ in draw.some(products, draw.between(1, 4)):
            items.append((i, product, draw.between(1, 5), round(price * draw.one([1.0, 1.0, 0.9, 0.8]), 2)))
            if sent and draw.chance(0.08):
                back = sent + timedelta(days=draw.between(2, 20))
                reason = draw.one(["damaged", "damaged", "wrong item", "changed mind"])
                returns.append((len(returns) + 1, i, product, str(back), reason))
    return {
        "categories": list(enumerate(sold, 1)),
        "products": products,
        "customers": customers,
        "orders": orders,
        "order_items": items,
        "returns": returns,
    }


def library(draw: Draw) -> Tables:
    things = "River Winter Garden Letter Island Mirror Harvest Shadow Orchard Compass Tide Lantern".split()
    shapes = ["The {}", "{} Songs", "A Short History of the {}", "Beyond the {}", "The Last {}"]
    titles = [shape.format(thing) for shape in shapes for thing in things]
    authors = []
    for i, name in enumerate(draw.some(NAMES, 25), 1):
        country = draw.one(["Norway", "Chile", "Japan", "Ireland", "Ghana", "Italy"])
        authors.append((i, name, country, draw.between(1890, 1990)))
    books, copies = [], []
    for i, title in enumerate(draw.some(titles, 55), 1):
        author, _, _, born = draw.one(authors)
        genre = draw.one(["novel", "novel", "poetry", "history", "science", "children"])
        books.append((i, title, author, genre, born + draw.between(24, 30), draw.between(48, 620)))
        for _ in range(draw.between(1, 3)):
            condition = draw.one(["good"] * 8 + ["worn"] * 3 + ["lost"])
            copies.append((len(copies) + 1, i, draw.one([1, 1, 2, 3]), condition))
    members = []
    for i, name in enumerate(draw.some(NAMES, 70), 1):
        kind = draw.one(["adult", "adult", "student", "child"])
        members.append((i, name, kind, str(draw.day(date(2018, 1, 1), date(2023, 12, 31)))))
    loans = []
    for i in range(1, 281):
        lent = draw.day(date(2024, 1, 2), date(2024, 6, 20))
        back = lent + timedelta(days=draw.between(3, 45))
        returned = str(back) if back <= date(2024, 6, 30) else None
        copy, member = draw.between(1, len(copies)), draw.between(1, 62)
        loans.append((i, copy, member, str(lent), str(lent + timedelta(days=28)), returned))
    return {
        "branches": [(1, "Central", 1962), (2, "Harbour", 1988), (3, "Hill", 2009)],
        "authors": authors,
        "books": books,
        "copies": copies,
        "members": members,
        "loans": loans,
    }


def bikes(draw: Draw) -> Tables:
    placed = {
        "Centre": ["Town Hall", "Market", "Old Bridge", "Central Station"],
        "East": ["Stadium", "East Park", "Brewery"],
        "West": ["University", "West Gate", "Clinic"],
        "Riverside": ["Harbour", "Lido"],
    }
    stations = []
    for district, titles in placed.items():
        for title in titles:
            stations.append((len(stations) + 1, title, district, draw.between(8, 30)))
    fleet, repairs = [], []
    for i in range(1, 61):
        model = draw.one(["city", "city", "city", "cargo", "electric"])
        bought = draw.day(date(2020, 3, 1), date(2023, 10, 1))
        fleet.append((i, model, str(bought), None if draw.chance(0.12) else draw.between(1, 12)))
        for _ in range(draw.below(3)):
            part = draw.one(["brake", "chain", "tyre", "light"] + ["battery"] * 3 * (model == "electric"))
            price = draw.between(12, 60) + (90.5 if part == "battery" else 0.5)
            reported = draw.day(date(2024, 1, 1), date(2024, 6, 30))
            repairs.append((len(repairs) + 1, i, str(reported), part, None if draw.chance(0.12) else price))
    riders = []
    for i, name in enumerate(draw.some(NAMES, 70), 1):
        riders.append((i, name, draw.one(["day", "month", "month", "year"]), draw.between(1955, 2006)))
    trips = []
    for i in range(1, 361):
        started = (
            f"{draw.day(date(2024, 4, 1), date(2024, 6, 30))} {draw.between(6, 22):02}:{draw.below(60):02}"
        )
        minutes = draw.between(4, 30) + (draw.between(10, 60) if draw.chance(0.2) else 0)
        km = round(minutes * draw.between(16, 28) / 100, 1)
        bike, rider = draw.between(1, 56), draw.between(1, 64)
        trips.append((i, bike, rider, draw.between(1, 12), draw.between(1, 12), started, minutes, km))
    return {"stations": stations, "bikes": fleet, "riders": riders, "trips": trips, "repairs": repairs}


DATABASES: dict[str, Callable[[Draw], Tables]] = {
    "school": school,
    "shop": shop,
    "library": library,
    "bikes": bikes,
}
