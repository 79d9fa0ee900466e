"""What must be true of a page. Each check gives a line for each thing that is wrong."""

import collections
import re

import truth
from look import PAPER, WIDTHS

POLICY = "default-src 'none'; style-src 'unsafe-inline'"
SMALLEST = 10.5  # pixels: letters that are smaller cannot be read
CONTRAST = 4.5
# What each state looks like, to an eye: which of red, green and blue are strong.
HUES = {
    "stuck": lambda r, g, b: r > 1.12 * max(g, b) and abs(g - b) < 0.3 * r,
    "draining": lambda r, g, b: r > g > b and g > 1.1 * b,
    "ok": lambda r, g, b: g > 1.5 * max(r, b),
}


def network(look):
    """The page is one file that asks for nothing, and has nothing that could."""
    facts = look.facts[WIDTHS[0]]
    yield from (f"has {it}" for it in facts["foreign"])
    yield from (f"loaded {it}" for it in facts["loaded"])
    yield from (f"asked for {it}" for it in look.asked if it != look.url)
    if look.url not in look.asked:
        yield "the log of requests is empty: it says nothing"
    yield from (f"the browser says: {it}" for it in look.said)


def nothing_runs(look):
    """Even what gets into the page in some way neither runs nor loads."""
    policy = look.facts[WIDTHS[0]]["policy"]
    if policy != [POLICY]:
        yield f"the policy is {policy}"
    ran, image = look.intrude()
    if ran:
        yield "a script in the page runs"
    if image != "refused":
        yield "an image in the page is loaded"


def graph(look):
    """Each template and holder is drawn, in a box of its own that holds all of its text."""
    for width in WIDTHS:
        facts = look.facts[width]
        for namespace, template in truth.templates(look.report):
            section = truth.section_of(facts, namespace, template)
            if section is None:
                yield f"{width}: no section for {namespace}/{template['name']}"
                continue
            about = f"{width}: {namespace}/{template['name'][:60]}: "
            yield from (about + it for it in drawn(section, template))
        boxes = [rect["box"] for it in facts["sections"] for svg in it["drawings"] for rect in svg["rects"]]
        yield from (f"{width}: two boxes overlap at {it}" for it in overlaps(boxes))


def drawn(section, template):
    if not section["headingSeen"]:
        yield "the heading cannot be seen"
    holders = template["holders"]
    found = [contents(svg, rect) for svg in section["drawings"] for rect in svg["rects"] if rect["seen"]]
    expected = [truth.squeezed(f"Metal3DataTemplate/{template['name']}")] if holders else []
    expected += [truth.squeezed(f"{it['kind']}/{it['name']}{it['role']}") for it in holders[: truth.DRAWN]]
    for want in expected:
        if not any(it.startswith(want) for it in found):
            yield f"not in a box: {want[:80]}"
    if len(found) != len(expected):
        yield f"{len(found)} boxes instead of {len(expected)}"
    said = truth.squeezed(section["text"])
    for it in holders[truth.DRAWN :]:
        if truth.squeezed(f"{it['kind']}/{it['name']}") not in said:
            yield f"not named: {it['kind']}/{it['name'][:60]}"
    if (more := len(holders) - truth.DRAWN) > 0 and f"and{more}more" not in said.lower():
        yield f"does not say that there are {more} more"
    for svg in section["drawings"]:
        for text in svg["texts"]:
            if not any(inside(text["box"], rect["box"]) for rect in svg["rects"]):
                yield f"text outside its box: {text['text'][:60]}"
            if text["size"] < SMALLEST:
                yield f"letters of {text['size']:.1f} pixels: {text['text'][:60]}"


def contents(svg, rect):
    """The text that can be seen in a box, from top to bottom."""
    texts = [it for it in svg["texts"] if it["seen"] and inside(it["box"], rect["box"])]
    return truth.squeezed("".join(it["text"] for it in sorted(texts, key=lambda it: it["box"][1])))


def fits(look):
    """Nothing is wider than the screen, and no text lies over another."""
    for width in WIDTHS:
        yield from (f"{width}: {it}" for it in laid_out(look.facts[width], width))


def laid_out(facts, width):
    if facts["width"] != width:
        yield f"the viewport has {facts['width']}"
    if facts["scrollWidth"] > width:
        yield f"can be scrolled sideways, to {facts['scrollWidth']}"
    boxes = [(*it["box"], it["heading"]) for it in facts["sections"]]
    boxes += [(*svg["box"], it["heading"]) for it in facts["sections"] for svg in it["drawings"]]
    for left, _, right, _, text in facts["lines"] + boxes:
        if left < 0 or right > width + 0.5:
            yield f"from {left:.0f} to {right:.0f}: {text[:60]}"
    yield from (f"text over text at {it}" for it in overlaps([it[:4] for it in facts["lines"]]))


def order(look):
    """What is on its way out comes by age, the oldest first; so do the templates in trouble."""
    for width in WIDTHS:
        facts = look.facts[width]
        found = [(truth.squeezed(it["cells"][0]), truth.squeezed(it["cells"][1])) for it in facts["rows"]]
        expected = truth.terminating(look.report)
        for (at, what), (found_at, found_what) in zip(expected, found):
            if not found_at.startswith(truth.squeezed(at)) or not found_what.startswith(truth.squeezed(what)):
                yield f"{width}: {at} {what[:60]} should be where {found_at} {found_what[:60]} is"
        if len(found) != len(expected):
            yield f"{width}: {len(found)} rows instead of {len(expected)}"
        sections = [truth.squeezed(it["heading"]) for it in facts["sections"]]
        wanted = [truth.heading(*it) for it in truth.by_trouble(look.report)]
        for want, have in zip(wanted, sections):
            if not have.startswith(want):
                yield f"{width}: {want[:60]} should be where {have[:60]} is"
        if len(sections) != len(wanted):
            yield f"{width}: {len(sections)} sections instead of {len(wanted)}"
        for what in ("rows", "sections"):
            tops = [it["box"][1] for it in facts[what]]
            if tops != sorted(tops):
                yield f"{width}: the {what} are shown in another order than they are written"


def steps(look):
    """A template in trouble has its next step next to it, and so has each object on its way out."""
    for width in WIDTHS:
        facts = look.facts[width]
        for namespace, template in truth.templates(look.report):
            section = truth.section_of(facts, namespace, template)
            said = truth.squeezed(section["text"]) if section else ""
            for it in truth.next_steps(template):
                if truth.squeezed(it) not in said:
                    yield f"{width}: {namespace}/{template['name'][:60]}: does not say {it[:80]}"
        for it in facts["rows"]:
            if not it["cells"][-1].strip():
                yield f"{width}: nothing is next for {it['cells'][1][:80]}"


def pixels(look):
    """The states have their colours, the boxes their edges, and the text is there to be read."""
    for width in WIDTHS:
        picture, facts = look.picture(width), look.facts[width]
        if (picture.width, picture.height) != (width, facts["height"]):
            yield f"{width}: the picture has {picture.width} x {picture.height}, the page {width} x {facts['height']}"
            continue
        for section in facts["sections"]:
            for problem in (*border(picture, section), *drawings(picture, section)):
                yield f"{width}: {section['heading'][:60]}: {problem}"


def border(picture, section):
    left, top, _, bottom = section["box"]
    want = rgb(section["border"])
    if not HUES[section["word"]](*want):
        yield f"{want} is no colour for {section['word']}"
    for part in (0.1, 0.5, 0.9):
        found = picture.at(left + section["borderWidth"] / 2, top + (bottom - top) * part)
        if distance(found, want) > 6:
            yield f"the border is {found} instead of {want}"


def drawings(picture, section):
    for number, (svg, rect) in enumerate((svg, rect) for svg in section["drawings"] for rect in svg["rects"]):
        left, top, right, bottom = rect["box"]
        fill, stroke, middle = rgb(rect["fill"]), rgb(rect["stroke"]), (top + bottom) / 2
        if number == 0 and section["word"] != "ok" and not HUES[section["word"]](*fill):
            yield f"{fill} is no colour for the box of a template that is {section['word']}"
        found = picture.at(right - 4, middle)
        if distance(found, fill) > 6:
            yield f"a box is {found} instead of {fill}"
        edge = picture.box(left - 1, top + 4, left + 1, bottom - 4)
        if min(distance(it, stroke) for it in edge) > 80:
            yield f"a box has no edge at {left:.0f}, {middle:.0f}"
        for text in svg["texts"]:
            if text["text"].strip() and inside(text["box"], rect["box"]):
                best = max(contrast(it, fill) for it in picture.box(*text["box"]))
                if best < CONTRAST:
                    yield f"cannot be read, with a contrast of {best:.1f}: {text['text'][:60]}"


def printed(look):
    """On paper everything is there, nothing is cut, and no heading is left behind by what it heads."""
    said = truth.ascii_of("".join(look.paper))
    for namespace, template in truth.templates(look.report):
        wanted = [f"{namespace}/{template['name']},", *truth.next_steps(template)]
        wanted += [f"{it['kind']}/{it['name']}" for it in template["holders"]]
        for it in wanted:
            if truth.ascii_of(it) not in said:
                yield f"not on paper: {it[:80]}"
    yield from (f"on paper: {it}" for it in laid_out(look.on_paper, PAPER))
    for number, (width, height, words) in enumerate(look.words, 1):
        for (left, top, right, bottom), word in words:
            if left < 0 or top < 0 or right > width or bottom > height:
                yield f"sheet {number}: cut: {word[:60]}"
    lonely = {truth.ascii_of(it["heading"]) for it in look.facts[WIDTHS[0]]["sections"] if it["alone"]}
    for number, sheet in enumerate(map(truth.ascii_of, look.paper[:-1]), 1):
        for it in map(truth.ascii_of, look.facts[WIDTHS[0]]["headings"]):
            if it not in lonely and sheet.lower().endswith(it.lower()):
                yield f"sheet {number} ends with the heading {it[:60]}"


CHECKS = {it.__name__: it for it in (network, graph, fits, order, steps, pixels, printed, nothing_runs)}


def problems(look):
    """By check; the last one changes the page."""
    return collections.OrderedDict((name, list(check(look))) for name, check in CHECKS.items())


def inside(inner, outer):
    return all(a >= b - 0.5 for a, b in zip(inner[:2], outer[:2])) and all(
        a <= b + 0.5 for a, b in zip(inner[2:], outer[2:])
    )


def overlaps(boxes):
    """Where two of them lie over one another by more than a pixel."""
    boxes = sorted(boxes, key=lambda it: it[1])
    for number, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[number + 1 :]:
            if other[1] >= bottom - 1:
                break
            if min(right, other[2]) - max(left, other[0]) > 1 and min(bottom, other[3]) - other[1] > 1:
                yield f"{max(left, other[0]):.0f}, {other[1]:.0f}"


def rgb(colour):
    return tuple(int(float(it)) for it in re.findall(r"[\d.]+", colour)[:3])


def distance(one, other):
    return max(abs(a - b) for a, b in zip(one, other))


def contrast(one, other):
    """As WCAG counts it."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour):
    parts = [it / 255 for it in colour]
    red, green, blue = (it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
