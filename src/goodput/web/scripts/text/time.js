// Times as text, in the browser's time zone, year first. The UTC time is on hover, and the zone in the footer.
//
// A run log may count seconds from a zero of its own: times before 2001 are shown as seconds on the log's clock.

import { grouped } from "./numbers.js";

const isUnix = (seconds) => seconds >= 1e9 && seconds < 2e11;

export function localTime(seconds) {
  if (!isUnix(seconds)) return `${grouped(seconds, 1)} s`;
  const when = new Date(1000 * seconds);
  return new Date(when - 60_000 * when.getTimezoneOffset()).toISOString().slice(0, 19).replace("T", " ");
}

// Two times of one run; the second without its date where that is the first's.
export function localSpan(from, to) {
  const [a, b] = [localTime(from), localTime(to)];
  return `${a} to ${isUnix(from) && a.slice(0, 10) === b.slice(0, 10) ? b.slice(11) : b}`;
}

// A label of a time axis: the time of day, or with `days` the month, day, hour and minute.
export function tickTime(seconds, days) {
  const local = localTime(seconds);
  return isUnix(seconds) ? (days ? local.slice(5, 16) : local.slice(11)) : local;
}

// Offset from UTC at this time: "UTC", "UTC+02:00"; "" on a log's own clock.
export function zone(seconds) {
  if (!isUnix(seconds)) return "";
  const minutes = -new Date(1000 * seconds).getTimezoneOffset();
  const two = (value) => String(value).padStart(2, "0");
  const [sign, offset] = [minutes < 0 ? "−" : "+", Math.abs(minutes)];
  return offset === 0 ? "UTC" : `UTC${sign}${two(Math.floor(offset / 60))}:${two(offset % 60)}`;
}
export const zonedTime = (seconds) => `${localTime(seconds)} ${zone(seconds)}`.trim();
export const utcTime = (seconds) =>
  isUnix(seconds) ? new Date(1000 * seconds).toISOString() : `${seconds} s on the log's clock`;
