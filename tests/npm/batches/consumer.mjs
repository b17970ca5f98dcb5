// A consumer of the batches door as people write it in JavaScript: fetch, .json(), acknowledge. Prints what it was answered.
const [server, topic] = process.argv.slice(2);
const place = { namespace: "default", topic };

async function post(path, body) {
  const response = await fetch(server + path, { method: "POST", body: JSON.stringify(body) });
  const text = await response.text();
  const isJson = response.headers.get("content-type") === "application/json";
  return { status: response.status, body: isJson ? JSON.parse(text) : text };
}

async function dequeue(limit) {
  const query = new URLSearchParams({ ...place, limit });
  return (await fetch(`${server}/dequeue?${query}`)).json();
}

const said = {};
const messages = Array.from({ length: 6 }, (_, n) => ({ ...place, payload: btoa(`${n}`) }));
const ids = (await post("/enqueue?ids=text", messages)).body;
const taken = await dequeue(6);
said.same = JSON.stringify(ids) === JSON.stringify(taken.map((each) => each.id_text));
said.rounded = taken.every((each) => !ids.includes(String(each.id)));
const rounded = taken[0].id;
said.ackOfRounded = await post("/ack", { ...place, id: rounded });
said.mixed = await post("/ack", [{ ...place, id: rounded }, ...taken.slice(0, 3).map((each) => ({ ...place, id: each.id_text }))]);
said.ack = await post("/ack", { ...place, id: taken[3].id_text });
said.nack = await post("/nack", { ...place, id: taken[4].id_text, error: "no" });
said.again = await post("/ack", { ...place, id: taken[3].id_text });
said.last = await post("/ack", { ...place, id: taken[5].id_text });
console.log(JSON.stringify(said));
