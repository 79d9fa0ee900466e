"""One page in the browser, seen at two widths and on paper. Each is looked at once, when it is needed."""

import functools
import pathlib
import re
import subprocess
import tempfile

import png
from driver import CannotTry

WIDTHS = [1280, 480]
PAPER = 718  # pixels between the margins of a sheet of A4
FACTS = pathlib.Path(__file__).with_name("facts.js").read_text()
# A page that runs scripts runs this one. The browser writes down that it did not.
INTRUDER = """
const script = document.createElement("script");
script.textContent = "document.documentElement.dataset.ran = 'yes'";
document.body.append(script);
const image = new Image();
document.body.append(image);
const outcome = new Promise((done) => { image.onload = () => done("loaded"); image.onerror = () => done("refused"); });
image.src = "data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAACADs=";
return outcome.then((it) => [document.documentElement.dataset.ran === "yes", it]);
"""


class Look:
    def __init__(self, browser, page, report):
        """`page` is a file, `report` what `-o json` says of the same state."""
        self.browser, self.url, self.report = browser, page.as_uri(), report
        browser.size(WIDTHS[0], 900)
        browser.open(self.url)
        self.said, self.asked = browser.logs()

    @functools.cached_property
    def facts(self):
        """By width."""
        return {width: self.at(width) for width in WIDTHS}

    def at(self, width, media=""):
        self.browser.size(width, 900, media)
        return self.browser.run(FACTS)

    @functools.cached_property
    def on_paper(self):
        """The page as it is laid out for paper: a PDF says little of what is cut."""
        return self.at(PAPER, "print")

    @functools.cached_property
    def files(self):
        """By width: a PNG of the whole page."""
        return {width: self.shot(width) for width in WIDTHS}

    def shot(self, width):
        # As high as the page: then nothing has to be scrolled.
        self.browser.size(width, self.facts[width]["height"])
        return self.browser.picture()

    def picture(self, width):
        return png.Picture(self.files[width])

    @functools.cached_property
    def pdf(self):
        self.browser.size(WIDTHS[0], 900)
        return self.browser.print()

    def intrude(self):
        """Whether a script that is put into the page runs, and what becomes of an image."""
        return self.browser.run(INTRUDER)

    @functools.cached_property
    def paper(self):
        """The text of each sheet, in the order of the page."""
        return pdf_text(self.pdf, "-raw").split("\f")[:-1]

    @functools.cached_property
    def words(self):
        """Width and height of each sheet, and its words with their boxes."""
        sheets = []
        for line in pdf_text(self.pdf, "-bbox").splitlines():
            numbers = [float(it) for it in re.findall(r'(?:width|height|xMin|yMin|xMax|yMax)="([^"]*)"', line)]
            if "<page " in line:
                sheets.append((*numbers, []))
            elif "<word " in line:
                sheets[-1][2].append((numbers, re.sub("<[^>]*>", "", line).strip()))
        return sheets


def pdf_text(pdf, form):
    with tempfile.NamedTemporaryFile(suffix=".pdf") as file:
        file.write(pdf)
        file.flush()
        done = subprocess.run(["pdftotext", "-enc", "UTF-8", form, file.name, "-"], capture_output=True, timeout=60, check=False)
    if done.returncode != 0:
        raise CannotTry(f"pdftotext: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")
