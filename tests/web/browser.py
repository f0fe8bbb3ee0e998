"""A page of web/ in headless Chromium, driven by selenium. Importing this leaves with 77, which CTest counts as skipped, where there
is no browser to drive."""

import base64
import shutil
import socket
import sys
import xml.etree.ElementTree

SKIPPED = 77

try:
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    print("skipped: python3-selenium is not installed")
    sys.exit(SKIPPED)

browser_path = shutil.which("chromium") or shutil.which("google-chrome")
driver_path = shutil.which("chromedriver")
if not browser_path or not driver_path:
    print("skipped: chromium and chromedriver are not installed")
    sys.exit(SKIPPED)
try:
    socket.getaddrinfo("localhost", 80)
except socket.gaierror:
    print("skipped: localhost does not resolve here, and the browser's driver is called by it")
    sys.exit(SKIPPED)


def check(condition, message):
    if not condition:
        raise AssertionError(message)


class Page:
    def __init__(self, file, folder, ready="window.rootdkLive && rootdkLive.run.heads"):
        """ready: what is true once the page can be used."""
        self.file, self.folder, self.ready = file, folder, ready
        options = webdriver.ChromeOptions()
        options.binary_location = browser_path
        for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
            options.add_argument(argument)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = webdriver.Chrome(options=options, service=Service(driver_path))
        self.driver.set_script_timeout(300)
        self.driver.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})

    def open(self, size, dark, hash_text=""):
        width, height = size
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride",
                                    {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {
            "features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.driver.get("about:blank")
        self.driver.get(self.file.resolve().as_uri() + hash_text)
        self.until(f"return Boolean({self.ready})", "the page does not start")

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def until(self, condition, message, seconds=240):
        try:
            WebDriverWait(self.driver, seconds, poll_frequency=0.05).until(lambda driver: driver.execute_script(condition))
        except Exception as error:
            errors = self.driver.get_log("browser")
            raise AssertionError(f"{message}: {errors}") from error

    def settle(self):
        """Waits for the frame in which changes are shown."""
        self.driver.execute_async_script("const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 0)))")

    def click(self, selector):
        """A real click, in the middle of the screen: the line at the bottom covers what lies under it."""
        element = self.driver.find_element(By.CSS_SELECTOR, selector)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        element.click()

    def show(self, view):
        self.click(f'[data-view="{view}"]')
        self.settle()

    def check_common(self, name):
        errors = [entry for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        check(not errors, f"{name}: the console says {errors}")
        wide = self.script("return [document.documentElement.scrollWidth, window.innerWidth]")
        check(wide[0] <= wide[1], f"{name}: the page is {wide[0]} wide on a screen of {wide[1]}")
        nameless = self.script("""
            return [...document.querySelectorAll('button, input, textarea, [role=img], canvas')].filter(e => !e.closest('.head'))
              .filter(e => !(e.getAttribute('aria-label') || e.textContent.trim() || e.closest('label') || e.getAttribute('title'))).map(e => e.outerHTML.slice(0, 120))""")
        check(not nameless, f"{name}: a screen reader has no name for {nameless}")
        small = self.script("""
            return [...document.querySelectorAll('main svg, main canvas')].filter(e => !e.closest('[hidden]')).filter(e => {
              const box = e.getBoundingClientRect(); return box.width < 4 || box.height < 4; }).map(e => e.outerHTML.slice(0, 120))""")
        check(not small, f"{name}: not drawn: {small}")

    def check_texts(self, name):
        """No text of a picture is cut off by its frame."""
        outside = self.script("""
            const found = [];
            for (const svg of document.querySelectorAll('main svg')) {
              const frame = svg.getBoundingClientRect();
              if (!frame.width) continue;
              for (const text of svg.querySelectorAll('text')) {
                const box = text.getBoundingClientRect();
                if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.top < frame.top - 2 || box.bottom > frame.bottom + 2)
                  found.push(`${svg.getAttribute('class')} ${svg.getAttribute('aria-label')}: ${text.textContent}`);
              }
            }
            return found""")
        check(not outside, f"{name}: texts cut off by their figure: {outside}")

    def set_slider(self, name, value):
        """Moves a slider as a hand would: its own event, its own number."""
        self.script("""
            const input = document.querySelector(`.controls input[aria-label="${arguments[0]}"]`);
            input.value = arguments[1];
            input.dispatchEvent(new Event('input', {bubbles: true}))""", name, value)
        self.settle()

    def choose(self, group, value):
        self.click(f'[role=radiogroup][aria-label="{group}"] [data-value="{value}"]')
        self.settle()

    def check_pictures(self, name, page):
        """Every picture that is shown can be saved. `page`: the name of the page's object in JavaScript."""
        pictures = self.driver.execute_async_script(f"""
            const done = arguments[0];
            Promise.all([...document.querySelectorAll('figure.picture:not([hidden])')].map(async figure =>
              [figure.dataset.name, {page}.pictureSvg(figure), (await {page}.picturePng(figure)).size])).then(done, error => done(String(error)))""")
        check(isinstance(pictures, list) and pictures, f"{name}: {pictures}")
        for picture, text, size in pictures:
            root = xml.etree.ElementTree.fromstring(text)
            check(root.tag.endswith("svg") and len(root) > 1 and "var(--" not in text, f"{name}: {picture} as SVG: {text[:200]}")
            check(size > 400, f"{name}: {picture} as PNG has {size} bytes")

    def check_saving(self, name):
        """The button of the map leaves a file."""
        self.script("document.querySelector('figure[data-name=map] [data-kind=png]').click()")
        self.until("return document.getElementById('readout').textContent.startsWith('Saved')", f"{name}: saving")
        WebDriverWait(self.driver, 30).until(lambda _: (self.folder / "rootdk-map.png").exists())

    def screenshot(self, path):
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": True})
        path.write_bytes(base64.b64decode(picture["data"]))
