"""Word lists of the nld-tiny corpus.

The words are chosen for what one small tokenizer spells in few pieces, so that copying a word is
one or two decisions and not six.
"""

from __future__ import annotations

from random import Random


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(text.split(separator))


NAMES = _words(
    "Ana Ben Carla David Emma Felix Grace Henry Iris Jack Kara Liam Maya Noah Olga Paul Rosa Sam "
    "Tina Victor Amy Bill Clara Daniel Ella Frank Gina Hugo Jane Leo Adam Alice Bella Chloe Dora "
    "Eva Erik Fiona George Helen Ivan Jacob Kevin Kim Lena Lily Lucas Maria Mark Mia Nora Omar "
    "Robert Ruth Sara "
    "Simon Sofia Thomas Tom Vera Will Zoe James Martha Peter Max John Mary Bob Joe Carl Lisa",
)

FIELDS = _words(
    "name age price title author color size weight city year email count owner height",
)

CLASSES = _words(
    "Book Car Person Product Student House Animal Order Ticket Player Movie Song Plant Room",
)

ITEMS = _words(
    "apples books cards coins cookies eggs flowers marbles pencils shells stamps stickers toys "
    "tickets "
    "oranges bottles beads candles buttons stones",
)

PACKS = {
    "boxes": "box",
    "bags": "bag",
    "baskets": "basket",
    "jars": "jar",
    "shelves": "shelf",
    "packs": "pack",
}

DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")

NUMBER_WORDS = _words("zero one two three four five six seven eight nine ten eleven twelve")

CATEGORIES = {
    "fruits": _words("apple banana cherry grape lemon mango orange peach pear plum kiwi fig"),
    "animals": _words("bear cat dog fox horse lion mouse rabbit tiger wolf goat duck"),
    "colors": _words("black blue brown gray green orange pink purple red white yellow silver"),
    "cities": _words("Berlin Cairo Lima London Madrid Oslo Paris Rome Tokyo Vienna Athens Boston"),
    "tools": _words("axe drill hammer knife ladder ruler saw brush shovel rope nail bucket"),
    "jobs": _words(
        "baker doctor driver farmer lawyer nurse painter pilot singer teacher waiter writer"
    ),
    "vegetables": _words(
        "bean carrot corn garlic onion pea pepper potato radish tomato cabbage leek"
    ),
}

GIFTS = _words("book scarf camera watch lamp plant basket bicycle blanket puzzle clock guitar")

PLACES = _words(
    "city park,old town hall,beach cafe,school garden,river house,museum,library,town square", ","
)

HOUSES = _words("library,museum,gym,swimming pool,zoo,theater,bakery,bookstore", ",")

PACKING = _words(
    "a towel,a jacket,two shirts,a hat,a map,a camera,a water bottle,a book,warm socks,snacks,"
    "a flashlight,rain boots",
    ",",
)

ACTIVITIES = _words(
    "breakfast,a walk,reading,lunch,a meeting,homework,dinner,"
    "cleaning,sports,music,shopping,cooking",
    ",",
)

DISHES = {
    "vegetable soup": _words("onion,carrot,potato,garlic,cream,tomato,corn,pepper", ","),
    "pasta salad": _words("pasta,tomato,cheese,corn,onion,ham,egg,pepper", ","),
    "fruit salad": _words("apple,banana,orange,grape,honey,lemon,mango,mint", ","),
    "fried rice": _words("rice,egg,carrot,peas,garlic,onion,chicken,corn", ","),
    "bean stew": _words("beans,onion,tomato,garlic,corn,pepper,beef,carrot", ","),
    "apple cake": _words("apple,flour,sugar,butter,egg,milk,lemon,honey", ","),
}


def names(rng: Random, count: int) -> list[str]:
    """Return `count` different first names."""
    return rng.sample(NAMES, count)


def category_items(rng: Random, low: int, high: int) -> tuple[str, list[str]]:
    """Return a category name and `low`..`high` different members of it, in random order."""
    category = rng.choice(list(CATEGORIES))
    return category, rng.sample(CATEGORIES[category], rng.randint(low, high))


def capital(text: str) -> str:
    """Return `text` with its first letter in upper case and the rest unchanged."""
    return text[:1].upper() + text[1:]


def series(words: list[str]) -> str:
    """Join words as in a sentence: `a`, `a and b`, `a, b and c`."""
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + " and " + words[-1]
