"""What has to hold for a page, however it is laid out. `look` gathers once what all checks judge."""

import dataclasses
import json
import re
import subprocess
import tempfile
import xml.etree.ElementTree

from png import Picture

# As many holders of one template are drawn; for the others there is a line of text.
DRAWN = 40
# Of longer pages, the picture shows the top.
TALL = 3000
MORE = re.compile(r"and (\d+) more")
SINCE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")

# All that is asked of the page. Boxes are left, top, right, bottom, in pixels of the whole page.
SCRIPT = """
const box = it => {
  const r = it.getBoundingClientRect()
  return [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY]
}
const all = (where, what) => [...where.querySelectorAll(what)]
return {
  resources: performance.getEntriesByType('resource').map(it => it.name),
  pointers: all(document, '[src], [href], script, link, iframe, object, embed').map(it => it.outerHTML),
  width: innerWidth,
  needed: document.documentElement.scrollWidth,
  text: document.body.innerText,
  rows: all(document, 'table tr').slice(1).map(it => all(it, 'td').map(it => it.innerText)),
  sections: all(document, 'section').map(it => ({
    box: box(it), title: it.querySelector('h3').innerText, text: it.innerText,
    border: getComputedStyle(it).borderLeftColor, heading: box(it.querySelector('h3')),
    graphs: all(it, 'svg').map(it => ({
      box: box(it),
      rects: all(it, 'rect').map(it => ({box: box(it), fill: getComputedStyle(it).fill})),
      texts: all(it, 'text').map(it => ({box: box(it), text: it.textContent})),
    })),
  })),
}
"""


class Wrong(Exception):
    """What is wrong with the page."""


@dataclasses.dataclass
class Seen:
    """A page, what it should say, and how it looks."""

    page: dict
    templates: list  # (namespace, template) of the report, in no order
    errors: list
    requests: list
    picture: Picture
    words: list  # of the printed page: its number, width and height, the word and its box


def look(browser, report, width, file):
    page = browser.run(SCRIPT)
    errors = [it["message"] for it in browser.log("browser")]
    events = [json.loads(it["message"])["message"] for it in browser.log("performance")]
    sent = [it["params"]["request"]["url"] for it in events if it["method"] == "Network.requestWillBeSent"]
    image = browser.picture(TALL)
    file.write_bytes(image)
    templates = [(it["namespace"], template) for it in report["namespaces"] for template in it["templates"]]
    return Seen(page, templates, errors, sent, Picture(image), list(words(browser.printed())))


def words(pdf):
    with tempfile.NamedTemporaryFile(suffix=".pdf") as file:
        file.write(pdf)
        file.flush()
        text = subprocess.run(["pdftotext", "-bbox", file.name, "-"], capture_output=True, check=True).stdout
    tree = xml.etree.ElementTree.fromstring(re.sub(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]", b"", text))
    name = lambda it: it.tag.rpartition("}")[2]
    for number, page in enumerate(it for it in tree.iter() if name(it) == "page"):
        for word in page:
            box = [float(word.get(it)) for it in ("xMin", "yMin", "xMax", "yMax")]
            yield number, float(page.get("width")), float(page.get("height")), word.text or "", box


def alone(seen):
    """Nothing but the page itself is loaded, and nothing in it could load or run anything."""
    expect(not seen.page["resources"], f"it loads {seen.page['resources']}")
    expect(not seen.page["pointers"], f"it has {seen.page['pointers'][:2]}")
    expect(not seen.errors, f"the browser says {seen.errors[:2]}")
    others = [it for it in seen.requests if not it.startswith("file:///")]
    expect(not others and len(seen.requests) <= 1, f"it asks for {seen.requests}")


def fits(seen):
    """Nobody has to scroll to the side."""
    expect(seen.page["needed"] <= seen.page["width"], f"it needs {seen.page['needed']} of {seen.page['width']} pixels")


def graphs(seen):
    """Each template with holders has a drawing of all of them, each in a box of its own."""
    for namespace, template in seen.templates:
        section = of(seen, namespace, template)
        holders = [f"{it['kind']}/{it['name']}" for it in template["holders"]]
        if not holders:
            expect(not section["graphs"], f"{section['title']}: a drawing of nothing")
            continue
        (graph,) = section["graphs"]
        drawn = min(len(holders), DRAWN)
        expect(len(graph["rects"]) == drawn + 1, f"{section['title']}: {len(graph['rects'])} boxes for {drawn} holders")
        shown = [it["text"].removesuffix("…") for it in graph["texts"]]
        for holder in holders[:drawn]:
            expect(any(holder.startswith(it) and len(it) > 20 or it == holder for it in shown), f"{holder} is not drawn")
        more = sum(int(found[1]) for found in map(MORE.fullmatch, shown) if found)
        expect(drawn + more == len(holders), f"{drawn} drawn and {more} more are not {len(holders)}")
        boxes = [it["box"] for it in graph["rects"]]
        for at, one in enumerate(boxes):
            expect(inside(one, graph["box"]), f"a box of {section['title']} is cut off")
            expect(not any(overlap(one, other) for other in boxes[at + 1 :]), f"two boxes overlap at {one}")
        for text in graph["texts"]:
            held = any(inside(text["box"], box) for box in boxes) or MORE.fullmatch(text["text"])
            expect(held, f"{text['text']!r} is not within its box")


def by_age(seen):
    """All that is terminating, the oldest first, each with its age; and templates by their trouble."""
    expected = []
    for namespace, template in seen.templates:
        if template["state"] == "terminating":
            expected.append((template["since"], f"{namespace}/Metal3DataTemplate/{template['name']}"))
        for it in template["holders"]:
            if it["terminating"]:
                expected.append((it["terminating"], f"{namespace}/{it['kind']}/{it['name']}"))
    found = [(SINCE.search(row[0])[0], row[1]) for row in seen.page["rows"] if SINCE.search(row[0])]
    expect(sorted(found) == sorted(expected), f"listed are {found}, and not {expected}")
    times = [since for since, _ in found]
    expect(times == sorted(times), f"not by age: {times}")
    words = ["stuck", "draining", "ok"]
    order = [words.index(it["title"].split(" ")[0].lower()) for it in seen.page["sections"] if it["title"]]
    expect(order == sorted(order), f"the worst is not first: {order}")


def next_steps(seen):
    """Whatever is not well has its next step, or what it waits for, in its section and in the table."""
    for namespace, template in seen.templates:
        section = of(seen, namespace, template)
        for step in template["steps"]:
            said = f"{step['action']} {step['object']}: {step['reason']}"
            expect(squeezed(said) in squeezed(section["text"]), f"{section['title']} does not say {said!r}")
        for wait in template["waitsFor"]:
            expect(squeezed(wait) in squeezed(section["text"]), f"{section['title']} does not say {wait!r}")
    empty = [row[1] for row in seen.page["rows"] if not row[3].strip()]
    expect(not empty, f"no next step for {empty}")


def colours(seen):
    """What is meant to be seen is there to see: state by colour, text on its ground."""
    pictured = [it for it in seen.page["sections"] if it["box"][3] < seen.picture.height]
    expect(pictured or not seen.page["sections"] or seen.page["sections"][0]["box"][3] > TALL, "no section is in the picture")
    for section in pictured:
        left, top, _, bottom = section["box"]
        found = seen.picture.at(left + 3, (top + bottom) / 2)
        expect(found == rgb(section["border"]), f"{section['title']}: {found} where {section['border']} should be")
        expect(seen.picture.colours(*section["heading"]) > 2, f"{section['title']} cannot be read")
        for graph in section["graphs"]:
            for rect in graph["rects"]:
                _, top, right, bottom = rect["box"]
                found = seen.picture.at(right - 4, (top + bottom) / 2)
                expect(found == rgb(rect["fill"]), f"{section['title']}: a box of {found} instead of {rect['fill']}")
            for text in graph["texts"]:
                expect(seen.picture.colours(*text["box"]) > 2, f"{text['text']!r} cannot be read")


def on_paper(seen):
    """Printed, all of it is there and nothing runs over the edge."""
    text = squeezed("".join(word for *_, word, _ in seen.words))
    for namespace, template in seen.templates:
        for said in [f"{namespace}/{template['name']}", *(it["reason"] for it in template["steps"])]:
            expect(squeezed(said) in text, f"{said!r} is not on paper")
    for number, width, height, word, (left, top, right, bottom) in seen.words:
        expect(left >= 0 and right <= width and top >= 0 and bottom <= height, f"{word!r} runs over page {number + 1}")


CHECKS = [alone, fits, graphs, by_age, next_steps, colours, on_paper]


def of(seen, namespace, template):
    """The section of a template."""
    title = squeezed(f"{namespace}/{template['name']},")
    found = [it for it in seen.page["sections"] if title in squeezed(it["title"])]
    expect(len(found) == 1, f"{len(found)} sections for {namespace}/{template['name']}")
    return found[0]


def squeezed(text):
    """Without what breaks lines."""
    return re.sub(r"\s", "", text)


def rgb(text):
    return tuple(int(it) for it in re.findall(r"\d+", text)[:3])


def inside(one, other, slack=1.0):
    return all((one[0] >= other[0] - slack, one[1] >= other[1] - slack, one[2] <= other[2] + slack, one[3] <= other[3] + slack))


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def expect(true, said):
    if not true:
        raise Wrong(said)
