// Records what each call of a client answers, in a form in which two servers can be compared.
const home = process.env.BUNQUEUE_HOME;
export const connection = { host: '127.0.0.1', port: Number(process.env.TEST_TCP_PORT) };
export const bunqueue = await import(`${home}/dist/client/index.js`);
export const version = JSON.parse(await Bun.file(`${home}/package.json`).text()).version;
export const isOld = version.startsWith('2.7');

const UUID = /[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/g;
const MOMENT = /\b1[6-9]\d{11}\b|\b20\d\d-\d\d-\d\dT[\d:.]+Z/g;
let names = new Map();

// Ids are named in the order in which they are first seen, so that mixing two of them up is a difference.
const named = (text) =>
  text
    .replace(UUID, (id) => names.get(id) ?? (names.set(id, `<id ${names.size + 1}>`), names.get(id)))
    .replace(MOMENT, '<time>');

const plain = (value, depth = 0) => {
  if (value === undefined) return '<undefined>';
  if (typeof value === 'function') return undefined;
  if (typeof value === 'bigint') return `<bigint ${value}>`;
  if (typeof value === 'number') return value > 1_500_000_000_000 ? '<time>' : value;
  if (typeof value === 'string') return named(value);
  if (value === null || typeof value !== 'object') return value;
  if (value instanceof Error) return `<error ${named(value.message)}>`;
  if (value instanceof Map) value = Object.fromEntries(value);
  if (value instanceof Date) return '<date>';
  if (value instanceof Uint8Array) return `<bytes ${[...value]}>`;
  if (depth > 12) return '<deep>';
  if (Array.isArray(value)) return value.map((each) => plain(each, depth + 1));
  const shown = {};
  for (const key of Object.keys(value).sort()) {
    // How long an attempt took is different each time.
    const each = key === 'duration' && 'failedAt' in value ? '<ms>' : plain(value[key], depth + 1);
    if (each !== undefined && each !== '<undefined>') shown[named(key)] = each;
  }
  return shown;
};

const calls = [];
let area = '';
export const begin = (name) => {
  area = name;
  names.clear();
};

// An area whose calls run beside those of other areas: it has names for ids and a place among the records of its own.
export const lane = (name) => {
  const own = [];
  const ownNames = new Map();
  calls.push(own);
  return {
    record: (label, value) => {
      const before = names;
      names = ownNames;
      own.push([`${name} ${label}`, plain(value)]);
      names = before;
    },
  };
};

export const record = (label, value) => calls.push([`${area} ${label}`, plain(value)]);

export const call = async (label, fn) => {
  try {
    const value = await fn();
    record(label, value);
    return value;
  } catch (error) {
    calls.push([`${area} ${label}`, `<throws ${named(error.message)}>`]);
    return undefined;
  }
};

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// How long to ask for what neither server is known to answer: long enough that one that begins to would be noticed.
export const BRIEFLY_MS = 2_000;
// Asks again until the answer is as hoped for. What it was last is recorded, so that a difference is seen.
export const until = async (label, fn, good = Boolean, patience_ms = 20_000) => {
  const end = Date.now() + Number(process.env.PATIENCE_MS ?? patience_ms);
  let value;
  for (;;) {
    value = await fn();
    if (good(value) || Date.now() > end) break;
    await sleep(20);
  }
  record(label, value);
  return value;
};

export const finish = async () => {
  await Bun.write(process.env.BUNQUEUE_CALLS, JSON.stringify(calls.flatMap((each) => (typeof each[0] === 'string' ? [each] : each))));
  process.exit(0);
};

const stop = async (error) => {
  calls.push([`${area} the script ends here`, `<throws ${named(String(error?.message ?? error))}>`]);
  await finish();
};
process.on('uncaughtException', stop);
process.on('unhandledRejection', stop);
