"""The live page in headless Chromium: typed into, every knob moved, every claim played, pictures saved; its numbers are
those of the native library.

usage: live_test.py ROOTDK LIVE_NATIVE [SCREENSHOT_FOLDER]
Leaves with 77, which CTest counts as skipped, where there is no browser to drive.
"""

import json
import math
import pathlib
import subprocess
import sys
import tempfile

from browser import ActionChains, By, Keys, Page, check
from native import Native, expect_close

SCREENS = [((1280, 900), False), ((1280, 900), True), ((390, 844), False), ((390, 844), True)]
VIEWS = ["text", "row", "knobs", "claims", "zero"]
TEXT = "First Citizen: Before we proceed any further, hear me speak."


def check_text(page, native, name):
    page.show("text")
    box = page.driver.find_element(By.ID, "text")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys(TEXT)
    page.until(f"return rootdkLive.state.text === {json.dumps(TEXT)} && rootdkLive.run.now && rootdkLive.run.heads && !rootdkLive.run.error", f"{name}: typing")
    shown = page.script("""
        const {run} = rootdkLive;
        return {ids: run.now.ids, tokens: run.now.tokens, weights: [...run.now.weights], logits: [...run.now.logits], next: run.now.next, heads: run.heads}""")
    answer = native.request(do="run", text=TEXT, next=10)
    check(shown["ids"] == answer["ids"] and shown["tokens"] == answer["tokens"], f"{name}: tokens {shown['tokens']}")
    expect_close(shown["weights"], native.array(answer, "weights"), f"{name}: weights")
    expect_close(shown["logits"], native.array(answer, "logits"), f"{name}: logits")
    for page_next, native_next in zip(shown["next"], answer["next"]):
        check(page_next["id"] == native_next["id"] and abs(page_next["p"] - native_next["p"]) < 1e-5, f"{name}: next {page_next} {native_next}")
    labels = native.request(do="labels", ids=answer["ids"])["heads"]
    for head, expected in zip(shown["heads"], labels):
        check(head["label"] == expected["label"], f"{name}: {head} natively {expected}")
        for field in ("score", "chance", "entropy", "sink"):
            if expected[field] is not None:
                check(abs(head[field] - expected[field]) < 1e-5, f"{name}: {field} of {head} natively {expected}")
    drawn = page.script("""
        const texts = [...document.querySelectorAll('.token text')].map(t => t.textContent);
        const bars = document.querySelectorAll('.row .bar').length, cells = document.querySelectorAll('.grid .head').length;
        const first = document.querySelector('.token[data-index="2"]');
        first.dispatchEvent(new MouseEvent('click', {bubbles: true}));
        return {tokens: texts.length, bars, cells, model: rootdkLive.run.model}""")
    page.settle()
    n = len(answer["ids"])
    check(drawn["tokens"] == n and drawn["bars"] == n, f"{name}: {drawn} for {n} tokens")
    check(drawn["cells"] == drawn["model"]["layers"] * drawn["model"]["heads"], f"{name}: {drawn}")
    check(page.script("return rootdkLive.state.query") == 2, f"{name}: a tap on a token chooses it")
    for label in {expected["label"] for expected in labels}:
        page.choose("Filter by label", label)
        visible = page.script("return [...document.querySelectorAll('.grid .head')].filter(e => !e.hidden).map(e => [Number(e.dataset.layer), Number(e.dataset.head)])")
        check(visible == [[head["layer"], head["head"]] for head in labels if head["label"] == label], f"{name}: filtered by {label}: {visible}")
    page.choose("Filter by label", "")
    page.check_texts(name)
    if "1280" in name:  # with a mouse: the token under it shows what it attends to, until the mouse leaves
        token = page.driver.find_element(By.CSS_SELECTOR, '.token[data-index="5"]')
        ActionChains(page.driver).move_to_element(token).perform()
        page.settle()
        check(page.script("return [rootdkLive.run.query(), rootdkLive.state.query]") == [5, 2], f"{name}: pointing at a token")
        ActionChains(page.driver).move_to_element(page.driver.find_element(By.ID, "theme")).perform()
        page.settle()
        check(page.script("return rootdkLive.run.query()") == 2, f"{name}: the mouse has left")
    page.script("rootdkLive.change({text: 'a '.repeat(1990)})")
    page.settle()
    check("tokens; the page shows at most 512" in page.script("return document.querySelector('.status').textContent"), f"{name}: a text too long")
    page.script("rootdkLive.change({text: arguments[0]})", TEXT)
    page.until("return !rootdkLive.run.error && rootdkLive.run.heads", f"{name}: after a text too long")


def check_row(page, native, name):
    page.script("rootdkLive.change({layer: 2, head: 1, query: 9, key: 4})")
    page.show("row")
    native.request(do="run", text=TEXT)
    operands = native.request(do="row", layer=2, head=1)
    d = operands["arrays"]["q"]["shape"][1]
    q = native.array(operands, "q")[9 * d:10 * d]
    keys = [native.array(operands, "k")[j * d:(j + 1) * d] for j in range(10)]
    sums = [sum(a * b for a, b in zip(q, key)) for key in keys]
    shown = page.script("const row = rootdkLive.views.get('row').now; return {sums: row.sums, p: row.scaled.weights, plain: row.plain.weights}")
    expect_close(shown["sums"], sums, f"{name}: q . k")
    for field, scale in (("p", 1 / math.sqrt(d)), ("plain", 1.0)):
        powers = [math.exp(s * scale - max(sums) * scale) for s in sums]
        expect_close(shown[field], [p / sum(powers) for p in powers], f"{name}: {field}")
    check(page.script("return document.querySelectorAll('.steps tbody tr').length") >= 11, f"{name}: the table has its keys")
    page.script("document.querySelector('.steps .number').dispatchEvent(new PointerEvent('pointerover', {bubbles: true}))")
    check("sum over" in page.script("return document.getElementById('readout').textContent"), f"{name}: a number explains itself")


def compare_synthetic(page, native, name):
    shown = page.script("""
        const {views, state} = rootdkLive, {arrays} = views.get('knobs').now, list = name => [...arrays[name].values];
        return {n: 64, d: state.d, seed: state.seed, scale: state.scale === 'free' ? state.free : state.scale, temperature: state.temperature, softcap: state.softcap,
                score: state.score, causal: state.causal, window: state.window, dropout: state.dropout,
                weights: list('weights'), dropped: list('dropped'), entropy: list('entropy'), scores: list('scores'), sum_p2: list('sum_p2'), max_weight: list('max_weight')}""")
    knobs = {key: shown[key] for key in ("scale", "temperature", "softcap", "score", "causal", "window", "dropout")}
    answer = native.request(do="synthetic", n=64, d=shown["d"], seed=shown["seed"], knobs=knobs)
    for field in ("weights", "dropped", "entropy", "sum_p2", "max_weight"):
        expect_close(shown[field], native.array(answer, field), f"{name}: {field}")
    expect_close(shown["scores"], native.array(answer, "scores"), f"{name}: scores")


def check_knobs(page, native, name):
    page.show("knobs")
    page.click("#reset")
    page.settle()
    compare_synthetic(page, native, f"{name} at rest")
    for knob, value in (("d_k", 7), ("temperature", -1), ("softcap", 5), ("window", 12), ("dropout", 0.5), ("free scale", -2)):
        before = page.script("return JSON.stringify(rootdkLive.state)")
        page.set_slider(knob, value)
        check(page.script("return JSON.stringify(rootdkLive.state)") != before, f"{name}: {knob} does not move")
        compare_synthetic(page, native, f"{name} {knob} {value}")
    for group, values in (("Scale", ("none", "1/sqrt(d)", "1/d")), ("Score", ("cosine", "additive", "dot")), ("Mask", ("false", "true"))):
        for value in values:
            page.choose(group, value)
            compare_synthetic(page, native, f"{name} {group} {value}")
    page.click("#draw")
    page.settle()
    compare_synthetic(page, native, f"{name} drawn again")
    page.click("#reset")
    page.settle()

    # "Without the root" runs the model again; a removed head changes its logits.
    changes = (("without the root", {"scale": "none"}, "#no-root", "knobs.scale === 'none'"),
               ("head removed", {"removed": [[1, 2]]}, '.remove [data-layer="1"][data-head="2"]', "knobs.removed.length === 1"))
    for changed, knobs, button, applied in changes:
        page.click("#reset")
        page.until("return rootdkLive.views.get('knobs').changed?.knobs.scale === 'model'", f"{name}: the model does not run")
        page.click(button)
        page.until(f"return rootdkLive.views.get('knobs').changed.{applied}", f"{name}: {changed}: the model does not run")
        logits = page.script("return [...rootdkLive.views.get('knobs').changed.arrays.logits.values]")
        answer = native.request(do="run", text=page.script("return rootdkLive.state.text"), knobs=knobs)
        expect_close(logits, native.array(answer, "logits"), f"{name}: logits {changed}")
        trained = page.script("return [...rootdkLive.run.now.logits]")
        check(max(abs(a - b) for a, b in zip(logits, trained)) > 1e-3, f"{name}: {changed} changes nothing")
    text = page.script("return [...document.querySelectorAll('.continued')].map(e => e.textContent)")
    check(text[0] and text[1] and text[0] != text[1], f"{name}: the texts are {text}")
    # Scores and masks that no cache serves: the text goes on all the same.
    page.choose("Score", "cosine")
    page.choose("Mask", "false")
    page.until("const {score, causal} = rootdkLive.views.get('knobs').changed.knobs; return score === 'cosine' && !causal", f"{name}: cosine, all keys")
    shown = page.script("return document.querySelector('.model').textContent")
    check("change by at most" in shown, f"{name}: cosine over all keys says {shown}")
    page.click("#reset")


def check_claims(page, native, name, everything):
    page.show("claims")
    ids = page.script("return rootdkLive.views.get('claims').claims.map(claim => claim.id)")
    check(len(ids) == 27, f"{name}: {len(ids)} claims")
    recorded = set(page.script("return [...rootdkLive.views.get('claims').recorded.keys()]"))
    for id in ids if everything else [1, 3, 8]:
        page.script("document.querySelector(`.claims [data-id=\"${arguments[0]}\"]`).click()", id)
        page.until(f"return (document.querySelector('.claim').dataset.shown || '').startsWith('{id} ')", f"{name}: claim {id} does not play")
        page.settle()
        badge = page.script("return document.querySelector('.claim .badge').textContent")
        if id in recorded:
            kept = page.script("return rootdkLive.views.get('claims').recorded.get(arguments[0])", id)
            texts = page.script("return rootdkLive.views.get('claims').claims.filter(one => one.id === arguments[0]).map(one => one.text)", id)
            check([kept["claim"]] == texts and kept["verdict"] == badge, f"{name}: claim {id} was recorded as {kept['claim']}: scripts/record_claims.sh")
            continue
        finding = page.script("return rootdkLive.views.get('claims').found.get(arguments[0])", id)
        if everything:
            expected = native.request(do="claim", id=id, seed=1, quick=True)
            check(finding["verdict"] == expected["verdict"] == badge, f"{name}: claim {id}: {badge}, natively {expected['verdict']}: {finding['note']}")
            a, b = finding["measured"][0], expected["measured"][0]
            check(a == b or abs(a - b) <= 1e-5 * max(1.0, abs(b)), f"{name}: claim {id} measures {a}, natively {b}")
    page.script("document.querySelector('.claims [data-id=\"1\"]').click()")
    page.until("return document.querySelector('.claim').dataset.shown === '1 1'", f"{name}: claim 1")
    page.click("#again")
    page.until("return document.querySelector('.claim').dataset.shown === '1 2'", f"{name}: claim 1 with a new seed")
    page.click("#to-knobs")
    page.settle()
    check(page.script("return [rootdkLive.state.view, rootdkLive.state.scale]") == ["knobs", "none"], f"{name}: a claim sets the knobs")


def check_zero(page, name):
    page.show("zero")
    page.script("rootdkLive.change({step: 0})")
    page.settle()
    steps = page.script("return document.querySelectorAll('.dots button').length")
    check(steps == 11, f"{name}: {steps} steps")
    for step in range(steps):
        check(page.script("return rootdkLive.state.step") == step, f"{name}: step {step}")
        filled = page.script("return document.querySelector('.holder').childElementCount")
        check(filled > 0, f"{name}: step {step} has no picture")
        page.check_common(f"{name} step {step + 1}")
        if step + 1 < steps:
            page.click("#next")
            page.settle()


def check_exports(page, name):
    for view in VIEWS:
        page.script("rootdkLive.change({view: arguments[0], step: 0})", view)
        page.settle()
        if view == "claims":
            page.until("return document.querySelectorAll('.claim figure.picture').length > 0", f"{name}: no figure of a claim")
        page.check_pictures(f"{name}: {view}", "rootdkLive")
    page.show("text")
    page.check_saving(name)


def check_link(page, name, size, dark):
    page.script("rootdkLive.change({view: 'row', layer: 3, head: 2, query: 4, text: 'To be, or not to be'})")
    page.settle()
    page.click("#share")
    page.until("return location.hash.includes('layer=3')", f"{name}: the link")
    page.open(size, dark, page.script("return location.hash"))
    state = page.script("const {view, layer, head, query, text} = rootdkLive.state; return [view, layer, head, query, text]")
    check(state == ["row", 3, 2, 4, "To be, or not to be"], f"{name}: the link restores {state}")
    # Arrow keys walk the views.
    tab = page.driver.find_element(By.CSS_SELECTOR, '[data-view="row"]')
    tab.send_keys(Keys.ARROW_RIGHT)
    page.settle()
    check(page.script("return rootdkLive.state.view") == "knobs", f"{name}: arrow keys")


def main():
    rootdk, native_program = sys.argv[1], sys.argv[2]
    pictures = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        file = folder / "live.html"
        subprocess.run([rootdk, "live", "--out", file], check=True, stdout=subprocess.DEVNULL)
        check(file.stat().st_size <= 4_000_000, f"the page has {file.stat().st_size} bytes")
        check("http://" not in file.read_text().replace("http://www.w3.org/", ""), "the page names another address")
        native = Native(native_program, "builtin")
        page = Page(file, folder)
        try:
            for number, (size, dark) in enumerate(SCREENS):
                name = f"live-{size[0]}-{'dark' if dark else 'light'}"
                page.open(size, dark)
                paper = page.script("return getComputedStyle(document.body).backgroundColor")
                check((paper != "rgb(255, 255, 255)") == dark, f"{name}: the paper is {paper}")
                check_text(page, native, name)
                check_row(page, native, name)
                check_knobs(page, native, name)
                check_claims(page, native, name, everything=number == 0)
                check_zero(page, name)
                for view in VIEWS:
                    page.script("rootdkLive.change({view: arguments[0], step: 0})", view)
                    page.settle()
                    page.check_common(f"{name} {view}")
                    if pictures:
                        page.until("return !rootdkLive.views.get('claims').measuring", "measuring")
                        page.screenshot(pictures / f"{name}-{view}.png")
                if number in (0, 3):
                    check_exports(page, name)
                check_link(page, name, size, dark)
                print(f"{name}: fine")
        finally:
            page.driver.quit()
            native.process.kill()


main()
