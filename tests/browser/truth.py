"""What a page must say, from `diagnose -o json` of the same state."""

import re

DRAWN = 40  # holders of one template that are drawn; the others are only named
HEALTH = ["stuck", "draining", "ok"]
# Blank, control characters, and what turns text around: the page has none of these, or a space.
NOTHING = re.compile(r"[\s\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2066-\u2069]+")


def squeezed(text):
    """Without anything that depends on where lines end."""
    return NOTHING.sub("", text)


def ascii_of(text):
    """What is on paper whatever fonts there are."""
    return re.sub(r"[^!-~]+", "", text)


def templates(report):
    """Each template with its namespace, in the order of the report."""
    return [(it["namespace"], template) for it in report["namespaces"] for template in it["templates"]]


def heading(namespace, template):
    """How the heading of its section begins."""
    return squeezed(f"{template['health']} {namespace}/{template['name']},")


def section_of(facts, namespace, template):
    begin = heading(namespace, template)
    return next((it for it in facts["sections"] if squeezed(it["heading"]).startswith(begin)), None)


def terminating(report):
    """Since when, and what: all that is on its way out, the oldest first."""
    found = []
    for namespace, template in templates(report):
        if template["state"] == "terminating":
            found.append((template["since"], namespace, "Metal3DataTemplate", template["name"]))
        for it in template["holders"]:
            if it["terminating"]:
                found.append((it["terminating"], namespace, it["kind"], it["name"]))
    # Of the same time: by namespace and name.
    found.sort(key=lambda it: (it[0] is None, it[0] or "", it[1], it[3].encode()))
    return [(since or "an unknown time", f"{space}/{kind}/{name}") for since, space, kind, name in found]


def by_trouble(report):
    """The templates, the oldest trouble first."""
    return sorted(templates(report), key=lambda it: (HEALTH.index(it[1]["health"]), began(it[1]) is None, began(it[1]) or ""))


def began(template):
    if template["health"] == "ok":
        return template["since"]
    times = [it["terminating"] for it in template["holders"]]
    times += [template["since"]] if template["state"] == "terminating" else []
    return min(filter(None, times), default=None)


def next_steps(template):
    """What the section of a template must say."""
    if template["health"] == "ok":
        return []
    steps = [f"{it['action']} {it['object']}: {it['reason']}" for it in template["steps"]]
    by_hand = [command for it in template["byHand"] for command in it["commands"]]
    return steps + [f"Waits for {it}" for it in template["waitsFor"]] + by_hand
