// What can be seen of the page, for checks.py. Boxes are [left, top, right, bottom] in pixels of the page.
const box = (it) => [it.left + scrollX, it.top + scrollY, it.right + scrollX, it.bottom + scrollY];
const boxOf = (element) => box(element.getBoundingClientRect());
const seen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
const all = (from, what) => [...from.querySelectorAll(what)];
const root = document.documentElement;

// Whatever could load something or run something.
const FORBIDDEN = "script, link, img, image, iframe, frame, object, embed, video, audio, source, use, base, form, foreignObject, a";
const LOADS = /^(on.*|src|srcset|href|.*:href|data|action|formaction|background|poster|ping|srcdoc)$/;
const foreign = [];
for (const element of all(document, "*")) {
  if (element.matches(FORBIDDEN) || (element.matches("meta") && /refresh/i.test(element.httpEquiv))) {
    foreign.push(element.outerHTML.slice(0, 100));
  }
  for (const { name, value } of element.attributes) {
    if (LOADS.test(name) || (name === "style" && /url|image/.test(value))) foreign.push(`${name}=${value}`.slice(0, 100));
  }
  if (element.matches("style") && /url\(|@import|image-set/i.test(element.textContent)) foreign.push("a style that loads");
}

const drawing = (svg) => ({
  box: boxOf(svg),
  rects: all(svg, "rect").map((it) => {
    const { fill, stroke } = getComputedStyle(it);
    return { box: boxOf(it), fill, stroke, seen: seen(it) };
  }),
  texts: all(svg, "text").map((it) => {
    const size = parseFloat(getComputedStyle(it).fontSize) * it.getScreenCTM().a;
    return { box: boxOf(it), text: it.textContent, size, seen: seen(it) };
  }),
});

const section = (it) => {
  const head = it.querySelector("h3");
  return {
    box: boxOf(it),
    word: it.className,
    border: getComputedStyle(it).borderLeftColor,
    borderWidth: parseFloat(getComputedStyle(it).borderLeftWidth),
    heading: head.textContent,
    headingSeen: seen(head),
    alone: it.textContent.trim() === head.textContent.trim(),
    text: it.innerText,
    drawings: all(it, "svg").map(drawing),
  };
};

const row = (it) => ({ box: boxOf(it), cells: all(it, "td").map((cell) => cell.innerText) });

// Each line of text on the page.
const lines = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const text = walker.currentNode.textContent.trim();
  if (!text || !seen(walker.currentNode.parentElement)) continue;
  const range = document.createRange();
  range.selectNodeContents(walker.currentNode);
  for (const it of range.getClientRects()) {
    if (it.width > 0 && it.height > 0) lines.push([...box(it), text.slice(0, 40)]);
  }
}

return {
  width: root.clientWidth,
  scrollWidth: Math.max(root.scrollWidth, document.body.scrollWidth),
  height: root.scrollHeight,
  policy: all(document, "meta[http-equiv=Content-Security-Policy]").map((it) => it.content),
  loaded: performance.getEntriesByType("resource").map((it) => it.name),
  foreign,
  headings: all(document, "h1, h2, h3").map((it) => it.textContent),
  text: document.body.innerText,
  sections: all(document, "section").map(section),
  rows: all(document, "table tr").filter((it) => it.querySelector("td")).map(row),
  lines,
};
