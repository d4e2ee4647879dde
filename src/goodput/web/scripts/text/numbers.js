// Numbers as text. What is not a finite number is "unknown", never 0.

const known = (format) => (value, ...options) => (Number.isFinite(value) ? format(value, ...options) : "unknown");

export const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
export const percent = known((ratio) => `${grouped(100 * ratio, 1)} %`);
export const count = known((value) => grouped(value, 0));
export const times = known((ratio) => `${ratio < 100 ? ratio.toFixed(2) : count(ratio)}×`);
export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

export const duration = known((seconds) => {
  if (seconds < 0) return `−${duration(-seconds)}`;
  if (seconds === 0) return "0 s";
  if (seconds < 0.0005) return `${(1e6 * seconds).toFixed(0)} µs`;
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = seconds < 3600 ? Math.round(seconds) : 60 * Math.round(seconds / 60);
  const i = units.findIndex(([size]) => whole >= size);
  const [[size, unit], [part, smaller]] = units.slice(i, i + 2);
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
});

// The length of a step: in milliseconds with so many digits, from a second on as other durations.
export const stepTime = (seconds, digits = 3) =>
  seconds !== null && seconds < 0.9995 ? `${(1000 * seconds).toPrecision(digits)} ms` : duration(seconds);

export const capitalised = (words) => words[0].toUpperCase() + words.slice(1);

// Whose time a run's account sums up: "GPU", or "process" where its ranks are known to have none.
export const workerOf = ({ is_on_cpu: onCpu = false }) => (onCpu ? "process" : "GPU");

// One unit for all time of a run's GPUs or processes, so that a column can be compared by eye.
export function unitOf(run) {
  const [worker, total] = [workerOf(run), run.gpu_seconds];
  const [size, text] = total < 7200 ? ["seconds", known((seconds) => grouped(seconds, 2))]
    : ["hours", known((seconds) => grouped(seconds / 3600, total < 3.6e6 ? 3 : 1))];
  const name = `${worker}-${size}`;
  return { worker, name, head: capitalised(name), short: run.is_on_cpu ? size[0] : `GPU-${size[0]}`, text };
}

// Time of GPUs or processes (`worker`) with a unit of its own, for lists in which runs of all sizes stand.
export function workTime(seconds, worker) {
  if (seconds < 7200) return `${grouped(seconds, seconds < 100 ? 1 : 0)} ${worker}-s`;
  return `${grouped(seconds / 3600, seconds < 3.6e6 ? 1 : 0)} ${worker}-h`;
}

// Three digits and a prefix: "33.2k", or with a unit "415 PFLOP".
export const compact = known((value, unit = "") => {
  const units = ["", "k", "M", "G", "T", "P", "E", "Z"];
  const i = Math.min(Math.max(Math.floor(Math.log10(Math.abs(value) || 1) / 3 + 1e-9), 0), units.length - 1);
  const scaled = value / 1000 ** i;
  const digits = scaled < 999.5 ? String(Number(scaled.toPrecision(3))) : grouped(scaled, 0);
  return `${digits}${unit && " "}${units[i]}${unit}`;
});

// With as many decimals as `whole` needs, so that the parts of one sum align.
export const dollars = known((value, whole) => `$${grouped(value, whole >= 1 ? 2 : whole >= 0.01 ? 4 : 6)}`);

// Shares in tenths of a percent that sum to exactly 1000, rounded as account/text/formats.py rounds them.
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
