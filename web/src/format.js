// format.js — numbers, sizes, times and digests as text. Times are absolute and always name their zone.
import { state } from './state.js';

const DASH = '–';
const NB = '\u00a0'; // a figure and its unit stay on one line

/** The same for a sentence of the daemon. */
export const unbroken = (text) => String(text ?? '').replace(/(\d) (%|ms|µs|s\b)/g, `$1${NB}$2`);
const absent = (x) => x === null || x === undefined || Number.isNaN(x);

export function number(x, digits = 3) {
  if (absent(x)) return DASH;
  const a = Math.abs(x);
  if (a !== 0 && (a < 1e-4 || a >= 1e9)) return x.toExponential(2);
  if (Number.isInteger(x)) return x.toLocaleString('en');
  return x.toLocaleString('en', { maximumSignificantDigits: Math.max(digits, a >= 1 ? Math.ceil(Math.log10(a + 1)) : 0) });
}

export const percent = (x, digits = 3) => (absent(x) ? DASH : `${number(x * 100, digits)}${NB}%`);
export const ms = (x) => (absent(x) ? DASH : `${number(x)}${NB}ms`);
export const us = (x) => (absent(x) ? DASH : x >= 1000 ? `${number(x / 1000)}${NB}ms` : `${number(x)}${NB}µs`);

export function bytes(x) {
  if (absent(x)) return DASH;
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (Math.abs(x) >= 1024 && i < units.length - 1) {
    x /= 1024;
    i++;
  }
  return `${number(x)}${NB}${units[i]}`;
}

/** A gate's or metric's value in its own unit. */
export function measure(x, unit) {
  if (absent(x)) return DASH;
  if (unit === 'share') return percent(x);
  if (unit === 'ratio') return `${number(x)}${NB}×`;
  if (unit === 'us') return us(x);
  if (!unit || unit === 'count') return number(x);
  return `${number(x)}${NB}${unit}`;
}

/** An interval, its unit said once. */
export function range(lo, hi, unit) {
  if (absent(lo) || absent(hi)) return DASH;
  if (unit === 'us') return `${us(lo)} … ${us(hi)}`;
  return `${number(unit === 'share' ? lo * 100 : lo)} … ${measure(hi, unit)}`;
}

const zone = () => (state.prefs.utc ? { timeZone: 'UTC' } : {});
const dateOf = (t) => (t instanceof Date ? t : new Date(t));

/** "2026-01-31 03:00:05 CET": the date, the second and the zone. */
export function time(t) {
  if (!t) return DASH;
  const d = dateOf(t);
  if (Number.isNaN(d.getTime())) return String(t);
  const part = Object.fromEntries(
    new Intl.DateTimeFormat('en-GB', {
      year: 'numeric',
      month: '2-digit',
      day: '2-digit',
      hour: '2-digit',
      minute: '2-digit',
      second: '2-digit',
      hourCycle: 'h23',
      timeZoneName: 'short',
      ...zone(),
    })
      .formatToParts(d)
      .map((p) => [p.type, p.value]),
  );
  return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
}

export function clock(t) {
  return t
    ? new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit', hourCycle: 'h23', ...zone() }).format(
        dateOf(t),
      )
    : DASH;
}

export function duration(seconds) {
  if (absent(seconds)) return DASH;
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
  return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
}

export const since = (t) => (t ? duration((Date.now() + state.skewMs - dateOf(t)) / 1000) : DASH);
export const short = (digest) => (digest ? String(digest).slice(0, 12) : DASH);
