// Numbers as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

/** 18432 -> "18,432". */
export const count = (number) => whole.format(number);

/** 18432 -> "18.4k", 2100000 -> "2.1M". */
export function short(number) {
  if (number < 1000) return whole.format(number);
  const [scaled, unit] = number < 999_500 ? [number / 1000, "k"] : [number / 1_000_000, "M"];
  return `${scaled < 99.95 ? scaled.toFixed(1).replace(/\.0$/, "") : whole.format(scaled)}${unit}`;
}

/** Seconds -> "0.42 s", "7.3 s", "48 s", "3:05 min", "2:04 h". */
export function duration(seconds) {
  if (seconds < 0.995) return `${Math.max(0, seconds).toFixed(2)} s`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  const rounded = Math.round(seconds);
  if (rounded < 60) return `${rounded} s`;
  if (rounded < 3600) return `${Math.floor(rounded / 60)}:${pad(rounded % 60)} min`;
  return `${Math.floor(rounded / 3600)}:${pad(Math.floor((rounded % 3600) / 60))} h`;
}

/** Seconds, whole ones, for what is shown anew each second. */
export const age = (seconds) => (seconds < 60 ? `${Math.floor(seconds)} s` : duration(seconds));

/** Tokens per second -> "0.8", "31", "1,240". */
export const rate = (number) => (number > 0 && number < 9.95 ? number.toFixed(1) : whole.format(number));

/** Seconds since 1970 -> "14:03:09". */
export const clock = (at) => new Date(at * 1000).toLocaleTimeString("en-GB");

const pad = (number) => String(number).padStart(2, "0");
