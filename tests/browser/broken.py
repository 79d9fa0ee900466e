"""Pages that are broken on purpose: on each of them, the check that is named has to fail."""

import random
import re
import struct
import zlib

import checks
import png
from look import Look

POLICY = re.compile(r"<meta http-equiv=\"Content-Security-Policy\"[^>]*>")
NOWHERE = "http://127.0.0.1:9/x"


def run(browser, pages):
    """How many of them are not noticed."""
    failures = decoder()
    made = {name: (pages.html(name), pages.report(name)) for name in {it[1] for it in CASES}}
    for check, state, about, breaks in CASES:
        html, report = made[state]
        broken = breaks(html)
        if broken == html:
            found = None
        else:
            found = list(checks.CHECKS[check](Look(browser, pages.file("broken", broken), report)))
        if not found:
            failures += 1
            why = "could not be made" if found is None else "is not noticed"
            print(f"self-test: {check}: a page with {about} {why}")
    print(f"self-test: {len(CASES)} broken pages, {failures} failures", flush=True)
    return failures


def decoder():
    """A picture that is written with each of the filters comes back as it was."""
    rng, failures = random.Random(1), 0
    for colour, step in png.CHANNELS.items():
        width = 7
        rows = [bytes(rng.randrange(256) for _ in range(width * step)) for _ in range(10)]
        found = png.Picture(encoded(rows, width, step, colour))
        if found.rows != rows or found.at(3, 4) != tuple(rows[4][3 * step : 3 * step + 3]):
            print(f"self-test: a picture with {step} channels is not read back")
            failures += 1
    return failures


def encoded(rows, width, step, colour):
    """Row N with filter N % 5, from the definition of each."""
    raw, above = bytearray(), bytes(width * step)
    for number, row in enumerate(rows):
        raw.append(number % 5)
        for at, value in enumerate(row):
            a, c = (row[at - step], above[at - step]) if at >= step else (0, 0)
            b = above[at]
            # The nearest of the three to a + b - c; of equals the first.
            near = min((a, b, c), key=lambda it: abs(a + b - c - it))
            raw.append((value - [0, a, b, (a + b) // 2, near][number % 5]) & 255)
        above = row
    header = struct.pack(">IIBBBBB", width, len(rows), 8, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(bytes(raw))), (b"IEND", b"")]
    packed = (
        struct.pack(">I4s", len(body), kind) + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return png.MAGIC + b"".join(packed)


def body(more):
    return lambda html: html.replace("<body>", f"<body>{more}", 1)


def end(more):
    return lambda html: html.replace("</body>", f"{more}</body>", 1)


def style(more):
    return lambda html: html.replace("</style>", f"{more}</style>", 1)


def without_policy(then=lambda html: html):
    return lambda html: then(POLICY.sub("", html))


def swapped(what):
    """The first two of something the other way round."""

    def swap(html):
        one, two = list(re.finditer(what, html, re.DOTALL))[:2]
        return html[: one.start()] + two[0] + html[one.end() : two.start()] + one[0] + html[two.end() :]

    return swap


def without(what, number=0):
    """The page without one of something."""

    def cut(html):
        found = list(re.finditer(what, html, re.DOTALL))[number]
        return html[: found.start()] + html[found.end() :]

    return cut


ROW, SECTION = r"<tr><td>.*?</tr>\n", r"<section.*?</section>\n"
SVG, ITEM = r"<svg[^>]*>.*?</svg>\n", r"<li>.*?</li>\n"
COVER = '<div style="position: absolute; inset: 0; height: 9000px; background: #fff"></div>'
IMAGE = f'<img src="{NOWHERE}.png" alt="">'

# The check, the state whose page is broken, what is wrong with it, and how it gets so.
CASES = [
    ("network", "demo", "an image from outside", body(IMAGE)),
    ("network", "demo", "an image from outside and no policy", without_policy(body(IMAGE))),
    ("network", "demo", "a background from outside", without_policy(style(f"body {{ background: url({NOWHERE}) }}"))),
    ("network", "demo", "a style from outside", without_policy(body(f'<link rel="stylesheet" href="{NOWHERE}">'))),
    ("network", "demo", "a script", body("<script>1</script>")),
    ("network", "demo", "a script in an attribute", body('<p onclick="1">x</p>')),
    ("network", "demo", "a link to elsewhere", body(f'<a href="{NOWHERE}">x</a>')),
    ("network", "demo", "an image in a drawing", lambda html: html.replace("<rect", f'<image href="{NOWHERE}"/><rect', 1)),
    ("nothing_runs", "demo", "no policy", without_policy()),
    ("nothing_runs", "demo", "a policy that lets scripts run", lambda html: html.replace("style-src", "script-src 'unsafe-inline'; style-src")),
    ("graph", "demo", "a holder that is not drawn", without(SVG, 2)),
    ("graph", "demo", "a template that is not drawn", without(SVG, 0)),
    ("graph", "demo", "a section less", without(SECTION, 2)),
    ("graph", "demo", "a box that cannot be seen", style("rect.going { visibility: hidden }")),
    ("graph", "demo", "text that cannot be seen", style("svg text { visibility: hidden }")),
    ("graph", "demo", "text beside its box", lambda html: html.replace('<text x="33"', '<text x="300"', 1)),
    ("graph", "demo", "text that is too long for its box", style("svg text { font-size: 20px }")),
    ("graph", "demo", "letters that are too small", style("svg { max-width: 300px }")),
    ("graph", "demo", "boxes over one another", style("svg { margin-bottom: -20px }")),
    ("graph", "demo", "another name in a box", lambda html: html.replace(">Metal3Data/batch-workers-0<", ">Metal3Data/batch-workers-8<")),
    ("graph", "many", "holders that are neither drawn nor named", without(r"<p>And \d+ more.*?</p>\n")),
    ("graph", "many", "a wrong number of holders that are not drawn", lambda html: html.replace("And 90 more", "And 9 more")),
    ("fits", "demo", "a line that does not end", body(f'<p style="white-space: nowrap">{"long " * 80}</p>')),
    ("fits", "demo", "drawings that are too wide for a phone", style(".graph { flex: none; width: 600px } svg { min-width: 600px }")),
    ("fits", "demo", "text left of the screen", style("section { margin-left: -60px }")),
    ("fits", "demo", "text over text", style("section p, section li { line-height: 8px; margin: 0 }")),
    ("fits", "hostile", "names that do not break", style("body { overflow-wrap: normal }")),
    ("order", "demo", "rows out of order", swapped(ROW)),
    ("order", "demo", "a row less", without(ROW, 3)),
    ("order", "demo", "sections out of order", swapped(SECTION)),
    ("order", "demo", "a section twice", lambda html: re.sub(SECTION, lambda it: it[0] * 2, html, count=1, flags=re.DOTALL)),
    ("order", "demo", "rows shown from the last to the first", style("tbody { display: flex !important; flex-direction: column-reverse }")),
    ("steps", "demo", "a step less", without(ITEM, 1)),
    ("steps", "demo", "steps that cannot be seen", style("ol { display: none }")),
    ("steps", "demo", "a reason less", lambda html: html.replace("its address must go first", "")),
    ("steps", "demo", "a row without a next step", lambda html: re.sub(r"<td>[^<]*</td></tr>", "<td></td></tr>", html, count=1)),
    ("steps", "v1beta1", "nothing that is waited for", lambda html: re.sub(r"<p>Waits for .*?</p>", "", html, flags=re.DOTALL)),
    ("pixels", "demo", "a state without its colour", style("section.stuck { border-left-color: #ddd }")),
    ("pixels", "demo", "a state with the colour of another", style("section.stuck { border-left-color: #2c7a2c }")),
    ("pixels", "demo", "a box without its colour", style("svg rect.stuck { fill: #fff }")),
    ("pixels", "demo", "a box without an edge", style("svg rect { stroke: #555; stroke-width: 0 }")),
    ("pixels", "demo", "letters that are white on white", style("svg text { fill: #fff }")),
    ("pixels", "demo", "letters that are too pale", style("svg text { fill: #aaa }")),
    ("pixels", "demo", "a cover over all of it", end(COVER)),
    ("printed", "demo", "sections that are not printed", style("@media print { section { display: none } }")),
    ("printed", "demo", "a line that is cut on paper", style("@media print { body { width: 1600px } }")),
    ("printed", "demo", "headings at the end of a sheet", style("@media print { h3 { break-after: page } section { break-inside: auto } }")),
    ("printed", "many", "no names but the drawn ones", without(r"<p>And \d+ more.*?</p>\n")),
]  # fmt: skip
