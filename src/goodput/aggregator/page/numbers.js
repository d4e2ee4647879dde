// Numbers for people: in, seconds, ratios and counts of the API; out, text. Knows no page.

export const percent = (ratio) => (ratio == null ? "unknown" : `${(100 * ratio).toFixed(1)} %`);
export const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const count = (value) => grouped(value, 0);
export const times = (ratio) => (ratio == null ? "unknown" : `${ratio < 100 ? ratio.toFixed(2) : count(ratio)}×`);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export function duration(seconds) {
  if (seconds == null) return "unknown";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = seconds < 3600 ? Math.round(seconds) : 60 * Math.round(seconds / 60);
  const i = units.findIndex(([size]) => whole >= size);
  const [[size, unit], [part, smaller]] = units.slice(i, i + 2);
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

// One unit for all of a run's GPU time, so that a column can be compared by eye.
export function gpuUnit(total) {
  return total < 7200
    ? { name: "GPU-seconds", text: (seconds) => grouped(seconds, 2) }
    : { name: "GPU-hours", text: (seconds) => grouped(seconds / 3600, total < 3.6e6 ? 3 : 1) };
}

// GPU time of one run among others, with its unit.
export function gpuTime(seconds) {
  if (seconds < 7200) return `${grouped(seconds, seconds < 100 ? 1 : 0)} GPU-s`;
  return `${grouped(seconds / 3600, seconds < 3.6e6 ? 1 : 0)} GPU-h`;
}

// Three digits and the letter of a power of a thousand: "33.2k", or with a unit "415 PFLOP".
export function compact(value, unit = "") {
  const units = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const i = Math.min(Math.max(Math.floor(Math.log10(Math.abs(value) || 1) / 3 + 1e-9), 0), units.length - 1);
  const short = value / 1000 ** i;
  const digits = short < 999.5 ? String(Number(short.toPrecision(3))) : grouped(short, 0);
  return `${digits}${unit && " "}${units[i]}${unit}`;
}

// As many decimals as the whole needs, so that the parts of one run stand under each other.
export const dollars = (value, whole) =>
  value == null ? "unknown" : `$${grouped(value, whole >= 1 ? 2 : whole >= 0.01 ? 4 : 6)}`;

// Shares in tenths of a percent that sum to exactly 1000, rounded as account/text.py does.
export function tenths(parts) {
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (!(total > 0)) return parts.map(() => 0);
  const exact = parts.map((part) => (1000 * part) / total);
  const rounded = exact.map((value) => Math.floor(value + 0.5));
  const short = 1000 - rounded.reduce((sum, part) => sum + part, 0);
  const sign = short > 0 ? 1 : -1;
  const others = parts.map((_, i) => i).filter((i) => i > 0 && parts[i] > 0 && (sign > 0 || rounded[i] > 0));
  others.sort((a, b) => sign * (rounded[a] - exact[a] - (rounded[b] - exact[b])) || a - b);
  for (const i of others.slice(0, Math.abs(short))) rounded[i] += sign;
  return rounded;
}
export const tenthsText = (share) => `${Math.floor(share / 10)}.${share % 10}`;

// The clock of whoever looks, year first; its zone is at the foot of the page and where one time stands alone, and the
// UTC time is on hover.
export function localTime(seconds) {
  const when = new Date(1000 * seconds);
  return new Date(when - 60_000 * when.getTimezoneOffset()).toISOString().slice(0, 19).replace("T", " ");
}
// Two moments of one run, as short as they can be told apart.
export function localSpan(from, to) {
  const [a, b] = [localTime(from), localTime(to)];
  return `${a} to ${a.slice(0, 10) === b.slice(0, 10) ? b.slice(11) : b}`;
}
// How far that clock is from UTC at this moment: "UTC", "UTC+02:00".
export function zone(seconds) {
  const minutes = -new Date(1000 * seconds).getTimezoneOffset();
  const two = (value) => String(value).padStart(2, "0");
  const [ahead, off] = [minutes < 0 ? "−" : "+", Math.abs(minutes)];
  return off === 0 ? "UTC" : `UTC${ahead}${two(Math.floor(off / 60))}:${two(off % 60)}`;
}
export const zonedTime = (seconds) => `${localTime(seconds)} ${zone(seconds)}`;
export const utcTime = (seconds) => new Date(1000 * seconds).toISOString();
