"""The report of the lab in headless Chromium: no console error, everything drawn, nothing wider than a phone.

usage: browser_test.py ROOTDK [SCREENSHOT_FOLDER]
Leaves with 77, which CTest counts as skipped, where there is no browser to drive.
"""

import pathlib
import subprocess
import sys
import tempfile

DESKTOP, PHONE = (1280, 900), (390, 844)
CLAIMS = [1, 2, 3, 4, 6, 7, 8, 10, 11, 12, 13, 14, 15, 17, 19, 20, 22, 23, 24, 26]

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "web"))
from browser import Service, browser_path, driver_path, webdriver  # noqa: E402


def open_browser(dark):
    options = webdriver.ChromeOptions()
    options.binary_location = browser_path
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(argument)
    if dark:
        options.add_argument("--force-dark-mode")
        options.add_argument("--blink-settings=preferredColorScheme=0")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(driver_path))


def show(driver, page, size, dark):
    """Opens the page as a screen of this size would, with the whole page in view."""
    width, height = size
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                           {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == PHONE})
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
        "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
    driver.get(page.resolve().as_uri())


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def check_common(driver, name):
    errors = [entry for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
    check(not errors, f"{name}: the console says {errors}")
    wide = driver.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    check(wide[0] <= wide[1], f"{name}: the page is {wide[0]} wide on a screen of {wide[1]}")
    small = driver.execute_script("""
        return [...document.querySelectorAll('svg, math, canvas')].filter(e => {
          const box = e.getBoundingClientRect(); return box.width < 4 || box.height < 4; }).map(e => e.outerHTML.slice(0, 120))""")
    check(not small, f"{name}: not drawn: {small}")
    outside = driver.execute_script("""
        const found = [];
        for (const svg of document.querySelectorAll('svg')) {
          const frame = svg.getBoundingClientRect();
          for (const text of svg.querySelectorAll('text')) {
            const box = text.getBoundingClientRect();
            if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
              found.push(svg.getAttribute('aria-label') + ': ' + text.textContent);
          }
        }
        return found""")
    check(not outside, f"{name}: texts cut off by their figure: {outside}")


def check_lab(driver, name):
    check_common(driver, name)
    counts = driver.execute_script("""
        const all = selector => document.querySelectorAll(selector).length;
        return {claims: all('article.claim'), verdicts: all('article.claim .badge'), figures: all('svg.figure'),
                diagrams: all('svg.diagram'), formulas: all('math'), lines: all('polyline'), cells: all('rect.cell')}""")
    check(counts["claims"] == len(CLAIMS), f"{name}: {counts}")
    check(counts["verdicts"] == len(CLAIMS), f"{name}: a claim has no verdict: {counts}")
    check(counts["diagrams"] == 2 and counts["figures"] > 12 and counts["formulas"] > len(CLAIMS), f"{name}: {counts}")
    check(counts["lines"] > 15 and counts["cells"] > 3000, f"{name}: {counts}")
    # A browser that knows MathML sets a fraction's numerator above its denominator.
    stacked = driver.execute_script("""
        const [above, below] = document.querySelector('math mfrac').children;
        return above.getBoundingClientRect().bottom <= below.getBoundingClientRect().top + 2""")
    check(stacked, f"{name}: formulas are not set")
    overlaps = driver.execute_script("""
        const found = [];
        for (const svg of document.querySelectorAll('svg.figure')) {
          const texts = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
          texts.forEach(([a, p], i) => texts.slice(i + 1).forEach(([b, q]) => {
            const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
            const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
            if (across > 2 && down > 0.35 * Math.min(p.height, q.height))
              found.push(`${svg.getAttribute('aria-label')}: "${a.textContent}" and "${b.textContent}"`);
          }));
        }
        return found""")
    check(not overlaps, f"{name}: texts over each other: {overlaps}")


def main():
    rootdk = sys.argv[1]
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory() as folder:
        lab = pathlib.Path(folder) / "lab.html"
        only = ",".join(str(claim) for claim in CLAIMS)
        subprocess.run([rootdk, "lab", "--quick", "--only", only, "--json", "--report", lab], check=True,
                       stdout=subprocess.DEVNULL)
        driver = open_browser(dark=False)
        try:
            for size, dark in ((DESKTOP, False), (DESKTOP, True), (PHONE, False)):
                name = f"{lab.stem}-{size[0]}-{'dark' if dark else 'light'}"
                show(driver, lab, size, dark)
                check_lab(driver, name)
                paper = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
                check((paper != "rgb(255, 255, 255)") == dark, f"{name}: the paper is {paper}")
                if pictures:
                    save_whole_page(driver, pictures / f"{name}.png")
                print(f"{name}: fine")
        finally:
            driver.quit()


def save_whole_page(driver, path):
    import base64
    picture = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
    path.write_bytes(base64.b64decode(picture["data"]))


main()
