// picture.mjs — a picture of the running console: node picture.mjs URL OUT.png [--light] [--phone] [--full]
import { launch } from './harness.mjs';

const flags = process.argv.slice(2).filter((a) => a.startsWith('--'));
const [url, out] = process.argv.slice(2).filter((a) => !a.startsWith('--'));
const unknown = flags.filter((f) => !['--light', '--phone', '--full'].includes(f));
if (!url || !out || unknown.length) {
  console.error('usage: node picture.mjs URL OUT.png [--light] [--phone] [--full]');
  process.exit(2);
}
const browser = await launch();
try {
  const phone = flags.includes('--phone');
  const page = await browser.newPage({
    viewport: phone ? { width: 390, height: 844 } : { width: 1440, height: 900 },
    deviceScaleFactor: phone ? 2 : 1,
    colorScheme: flags.includes('--light') ? 'light' : 'dark',
    timezoneId: 'UTC',
  });
  await page.goto(url);
  await page.locator('.top .badge', { hasText: 'live' }).waitFor();
  await page.locator('.view h1').first().waitFor();
  await page.waitForLoadState('domcontentloaded');
  // The history request fills the plots; wait for it rather than for a time.
  await page.waitForFunction(() => !document.querySelector('[aria-busy="true"]'));
  await page.screenshot({ path: out, fullPage: flags.includes('--full') });
} finally {
  await browser.close();
}
