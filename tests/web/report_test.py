"""The report of rootdk inspect in headless Chromium: heads filtered and walked, tokens pointed at, pictures saved; its numbers are
those of the native library.

usage: report_test.py ROOTDK LIVE_NATIVE MODELS [SCREENSHOT_FOLDER]
Leaves with 77, which CTest counts as skipped, where there is no browser to drive.
"""

import math
import pathlib
import subprocess
import sys
import tempfile

from browser import ActionChains, By, Keys, Page, check
from native import Native, expect_close

DESKTOP, PHONE = (1280, 900), (390, 844)
SCREENS = [(DESKTOP, False), (DESKTOP, True), (PHONE, False), (PHONE, True)]
# Tokens that would end or hide a script, were they not kept harmless.
TEXT = "First Citizen: \"hear me\" <!--<script>alert('speak')</script> First Citizen: hear me speak."
READY = "window.rootdkReport"
LIST = "const {report, state} = rootdkReport, side = report.sides[0], list = side.list('self');"


def check_numbers(page, native, name):
    answer = native.request(do="run", text=TEXT)
    shown = page.script(LIST + "return {tokens: side.data.tokens, weights: list.flatMap(one => [...one.map.values]), heads: list.map(one => one.label)}")
    check(shown["tokens"] == answer["tokens"], f"{name}: tokens {shown['tokens']}")
    expect_close(shown["weights"], native.array(answer, "weights"), f"{name}: weights")
    for head, expected in zip(shown["heads"], native.request(do="labels", ids=answer["ids"])["heads"], strict=True):
        check(head["label"] == expected["label"], f"{name}: {head} natively {expected}")
        for field in ("score", "chance", "entropy", "sink", "sink_chance", "saturation", "gradient_left"):
            if expected[field] is not None:
                check(abs(head[field] - expected[field]) < 1e-5, f"{name}: {field} of {head} natively {expected}")
    return len(answer["ids"])


def visible_heads(page):
    return page.script("return [...document.querySelectorAll('.grid .head')].filter(e => !e.hidden).map(e => [Number(e.dataset.layer), Number(e.dataset.head)])")


def check_filter(page, name):
    labels = page.script(LIST + "return list.map(one => [one.layer, one.head, one.label.label])")
    check(visible_heads(page) == [[layer, head] for layer, head, _ in labels], f"{name}: not every head has a thumbnail")
    present = {label for _, _, label in labels}
    check(len(present) > 1, f"{name}: a filter between {present} says nothing")
    for label in present:
        page.choose("Filter by label", label)
        expected = [[layer, head] for layer, head, other in labels if other == label]
        check(visible_heads(page) == expected, f"{name}: {label} shows {visible_heads(page)}, not {expected}")
        page.click(".head-grid .head:not([hidden])")
        page.settle()
        for layer, head in expected[1:] + expected[:1]:  # the arrow at the top walks through these alone
            page.click("button.next")
            page.settle()
            check(page.script("return [rootdkReport.state.layer, rootdkReport.state.head]") == [layer, head], f"{name}: the next head of {label}")
    page.check_common(f"{name} filtered")
    page.choose("Filter by label", "")
    # Arrow keys walk through the thumbnails.
    first = page.driver.find_element(By.CSS_SELECTOR, ".grid .head")
    page.script("arguments[0].scrollIntoView({block: 'center'})", first)
    first.click()
    first.send_keys(Keys.ARROW_RIGHT)
    page.settle()
    check(page.script("return [rootdkReport.state.layer, rootdkReport.state.head]") == [0, 1], f"{name}: an arrow key")


def check_links(page, n, name):
    """A token, its row and the map show the same query."""
    seen = """
        const {views} = rootdkReport, side = views.get('heads').sides[0], {map} = side.pictures.now;
        const query = Number(document.querySelector('.token.query').dataset.index);
        const tips = [...document.querySelectorAll('.row .bar')].map(bar => bar.dataset.tip);
        return {query, bars: tips.length, weights: [...map.values.subarray(query * map.columns, (query + 1) * map.columns)], tips,
                arcs: document.querySelectorAll('.arc').length, marked: document.querySelector('.queries .chosen').textContent,
                row: Math.round(document.querySelector('.marker').getBBox().y / document.querySelector('.marks').viewBox.baseVal.height * map.rows)}"""
    page.script("document.querySelector('.token[data-index=\"4\"]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    page.settle()
    found = page.script(seen)
    check(found["query"] == 4 and found["row"] == 4 and found["bars"] == n, f"{name}: a tap on a token: {found}")
    check(found["arcs"] == sum(weight >= 0.01 for j, weight in enumerate(found["weights"]) if j != 4), f"{name}: arcs {found}")
    for tip, weight in zip(found["tips"], found["weights"]):
        shown = float(tip.rsplit(" ", 1)[1].replace("−", "-")) if "·10" not in tip else 0.0
        check(abs(shown - weight) <= 0.006 * max(weight, 0.02), f"{name}: {tip}, but the weight is {weight}")
    if "1280" in name:
        token = page.driver.find_element(By.CSS_SELECTOR, '.token[data-index="7"]')
        page.script("arguments[0].scrollIntoView({block: 'center'})", token)
        ActionChains(page.driver).move_to_element(token).perform()
        page.settle()
        found = page.script(seen)
        check(found["query"] == 7 and found["row"] == 7, f"{name}: pointing at a token: {found}")
        check(page.script("return rootdkReport.state.query") == 4, f"{name}: pointing chooses")
        ActionChains(page.driver).move_to_element(page.driver.find_element(By.ID, "theme")).perform()
        page.settle()
        check(page.script(seen)["query"] == 4, f"{name}: the mouse has left")
    # The map: the cell under the pointer chooses its query and key, arrow keys go on from there.
    page.script("""
        const canvas = document.querySelector('.axes canvas'), box = canvas.getBoundingClientRect(), n = canvas.width;
        canvas.dispatchEvent(new MouseEvent('click', {clientX: box.left + 2.5 * box.width / n, clientY: box.top + 6.5 * box.height / n}))""")
    page.settle()
    check(page.script("return [rootdkReport.state.query, rootdkReport.state.key]") == [6, 2], f"{name}: the map")
    page.driver.find_element(By.CSS_SELECTOR, ".axes canvas").send_keys(Keys.ARROW_DOWN)
    page.settle()
    check(page.script(seen)["query"] == 7, f"{name}: arrow keys on the map")


def check_row(page, native, name):
    page.script("rootdkReport.change({layer: 2, head: 1, query: 9, key: 4})")
    page.show("row")
    native.request(do="run", text=TEXT)
    operands = native.request(do="row", layer=2, head=1)
    d = operands["arrays"]["q"]["shape"][1]
    q = native.array(operands, "q")[9 * d:10 * d]
    keys = [native.array(operands, "k")[j * d:(j + 1) * d] for j in range(10)]
    sums = [sum(a * b for a, b in zip(q, key)) for key in keys]
    shown = page.script("const row = rootdkReport.views.get('row').now; return {q: row.own, k: row.keys[4], sums: row.sums, p: row.scaled.weights, out: row.out}")
    expect_close(shown["q"], q, f"{name}: q")
    expect_close(shown["k"], keys[4], f"{name}: k")
    expect_close(shown["sums"], sums, f"{name}: q . k")
    powers = [math.exp((s - max(sums)) / math.sqrt(d)) for s in sums]
    weights = [p / sum(powers) for p in powers]
    expect_close(shown["p"], weights, f"{name}: weights")
    values = [native.array(operands, "v")[j * d:(j + 1) * d] for j in range(10)]
    expect_close(shown["out"], [sum(p * v[c] for p, v in zip(weights, values)) for c in range(d)], f"{name}: out")
    check(page.script("return document.querySelectorAll('.steps tbody tr').length") >= 11, f"{name}: the table has its keys")
    page.check_common(f"{name} row")
    page.check_texts(f"{name} row")


def check_exports(page, name):
    for view in ("heads", "row"):
        page.show(view)
        page.check_pictures(f"{name}: {view}", "rootdkReport")
    page.show("heads")
    page.check_saving(name)


def check_link(page, name, size, dark):
    page.script("rootdkReport.change({view: 'row', layer: 3, head: 2, query: 4, filter: 'mixed'})")
    page.settle()
    page.click("#share")
    page.until("return location.hash.includes('query=4')", f"{name}: the link")
    page.open(size, dark, page.script("return location.hash"))
    state = page.script("const {view, layer, head, query, filter} = rootdkReport.state; return [view, layer, head, query, filter]")
    check(state == ["row", 3, 2, 4, "mixed"], f"{name}: the link restores {state}")


def check_other(page, name, rows):
    """Any report: each stack of each side drawn, and its rows computed where they are in the page (`rows`)."""
    stacks = page.script("return rootdkReport.report.stacks()")
    for stack in stacks:
        page.script("rootdkReport.change({view: 'heads', stack: arguments[0], query: 1, key: -1})", stack)
        page.settle()
        page.check_common(f"{name} {stack}")
        page.check_texts(f"{name} {stack}")
        for side in range(page.script("return rootdkReport.report.sides.length")):
            page.script("rootdkReport.change({view: 'row', side: arguments[0]})", side)
            page.settle()
            gap = page.script("""
                const {report} = rootdkReport, one = report.side().selected(), now = rootdkReport.views.get('row').now;
                if (!one || !now) return null;
                const {kernel} = report.rowSubject(report.query());
                return Math.max(...now.scaled.weights.map((p, j) => Math.abs(p - kernel[j])))""")
            check((gap is not None) == rows, f"{name}: {stack}: a row is computed: {gap}")
            if rows:
                check(gap < 1e-5, f"{name}: {stack}: the row computed differs from the kernel's by {gap}")
            page.check_common(f"{name} {stack} row")
    page.script("rootdkReport.change({view: 'heads', stack: arguments[0]})", stacks[0])
    page.settle()


def check_report(page, native, pictures):
    for number, (size, dark) in enumerate(SCREENS):
        name = f"report-{size[0]}-{'dark' if dark else 'light'}"
        page.open(size, dark)
        paper = page.script("return getComputedStyle(document.body).backgroundColor")
        check((paper != "rgb(255, 255, 255)") == dark, f"{name}: the paper is {paper}")
        n = check_numbers(page, native, name)
        check_filter(page, name)
        check_links(page, n, name)
        check_row(page, native, name)
        for view in ("heads", "row", "guide"):
            page.show(view)
            page.check_common(f"{name} {view}")
            page.check_texts(f"{name} {view}")
            if pictures:
                page.screenshot(pictures / f"{name}-{view}.png")
        if number in (0, 3):
            check_exports(page, name)
        check_link(page, name, size, dark)
        print(f"{name}: fine")


def main():
    rootdk, native_program, models = sys.argv[1], sys.argv[2], pathlib.Path(sys.argv[3])
    pictures = pathlib.Path(sys.argv[4]) if len(sys.argv) > 4 else None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)

        def report(name, *arguments):
            file = folder / f"{name}.html"
            subprocess.run([rootdk, "inspect", *arguments, "--report", file], check=True, stdout=subprocess.DEVNULL)
            return file

        # A name that no phone has room for, and a model with more heads than the other.
        far = folder / ("a-folder-with-a-name-that-goes-on-" * 4)
        far.symlink_to((models / "gpt2").resolve())
        ids = ",".join(str(i % 7 + i % 3) for i in range(24))
        long_text = folder / "long.txt"
        long_text.write_text("What light through yonder window breaks? " * 60)
        # (file, whether rows are in it)
        others = [(report("pair", models / "llama", "--ids", ids, "--compare", far), True),
                  (report("encoder-decoder", models / "t5", "--ids", ids), True),
                  (report("sinks-and-windows", models / "gpt_oss", "--ids", ids), True),
                  (report("softcap", models / "gemma2", "--ids", ids), True),
                  (report("alibi", models / "bloom", "--ids", ids), True),
                  (report("encoder", models / "modernbert", "--ids", ids), True),
                  (report("long", "builtin", "--text", long_text), False)]
        native = Native(native_program, "builtin")
        page = Page(report("heads", "builtin", "--prompt", TEXT), folder, READY)
        try:
            check("http://" not in page.file.read_text().replace("http://www.w3.org/", ""), "the page names another address")
            check_report(page, native, pictures)
            for file, rows in others:
                page.file = file
                for size, dark in ((DESKTOP, False), (PHONE, True)):
                    name = f"{file.stem}-{size[0]}-{'dark' if dark else 'light'}"
                    page.open(size, dark)
                    check_other(page, name, rows)
                    if pictures:
                        page.screenshot(pictures / f"{name}.png")
                    print(f"{name}: fine")
        finally:
            page.driver.quit()
            native.process.kill()


main()
