// Signs the broker's challenge with the key of a credentials file; the key stays here.
"use strict";

const form = document.querySelector("form");
const problem = document.querySelector("[role=alert]");
const button = document.querySelector("button");
const BASE32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
// Before the 32 bytes of an Ed25519 key in PKCS #8 (RFC 8410).
const PKCS8 = [0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];

function block(text, name) {
  const found = text.match(new RegExp(`-+BEGIN ${name}-+\\s+(\\S+)\\s+-+END ${name}-+`));
  if (!found) throw new Error("This file has no credentials; allowed: a file made by `nearcast auth add`.");
  return found[1];
}

function privateKey(seed) { // two bytes that say which kind of key, the key, two bytes of checksum
  const bytes = [];
  let value = 0, bits = 0;
  for (const letter of seed) {
    value = (value << 5 | BASE32.indexOf(letter)) & 0xfff;
    bits += 5;
    if (bits >= 8) bytes.push(value >> (bits -= 8) & 0xff);
  }
  return new Uint8Array([...PKCS8, ...bytes.slice(2, 34)]);
}

async function ask(path, body) {
  const answer = await fetch(path, {
    method: "POST", headers: {"content-type": "application/json"}, body: JSON.stringify(body),
  });
  const told = await answer.json();
  if (!answer.ok) throw new Error(typeof told.detail === "string" ? told.detail : "The console refused the file.");
  return told;
}

async function logIn(text) {
  const token = block(text, "NATS USER JWT");
  let key;
  try {
    key = await crypto.subtle.importKey("pkcs8", privateKey(block(text, "USER NKEY SEED")), "Ed25519", false, ["sign"]);
  } catch (error) {
    if (error instanceof Error && error.message.startsWith("This file")) throw error;
    throw new Error("This browser cannot sign with this key (Ed25519); use a newer one, and https or localhost.");
  }
  const begun = await ask("/api/v1/login/challenge", {token});
  const signed = await crypto.subtle.sign("Ed25519", key, new TextEncoder().encode(begun.challenge));
  const signature = btoa(String.fromCharCode(...new Uint8Array(signed)));
  await ask("/api/v1/login", {id: begun.id, signature, cookie: true});
}

// A link that the console printed has its secret behind the #, which browsers do not send by themselves.
async function followLink() {
  const link = location.hash.match(/^#link=(.+)$/);
  if (!link) return;
  history.replaceState(null, "", "/login");
  try {
    await ask("/api/v1/login/link", {link: link[1], cookie: true});
    location.replace("/");
  } catch (error) {
    problem.textContent = error.message;
  }
}

window.addEventListener("hashchange", followLink);
followLink();
form.addEventListener("submit", async event => {
  event.preventDefault();
  problem.textContent = "";
  button.disabled = true;
  try {
    await logIn(await document.querySelector("input").files[0].text());
    location.href = "/";
  } catch (error) {
    problem.textContent = error.message;
    button.disabled = false;
  }
});
