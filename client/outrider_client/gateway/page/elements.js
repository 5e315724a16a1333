// Makes elements, and copies text.

/** An element with these properties and children. */
export function element(name, properties = {}, children = []) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

export const button = (properties, onClick) => {
  const made = element("button", { type: "button", ...properties });
  made.addEventListener("click", onClick);
  return made;
};

const TOLD_MS = 2000;

/** A button that copies what `text()` returns, and says so. */
export function copyButton(label, name, text) {
  const made = button({ className: "quiet", textContent: label, ariaLabel: name }, async () => {
    const told = (await copyText(text())) ? "Copied" : "Not copied";
    made.textContent = made.ariaLabel = told;
    announce(told);
    setTimeout(() => Object.assign(made, { textContent: label, ariaLabel: name }), TOLD_MS);
  });
  return made;
}

/** Tells those who do not see the page. */
export function announce(message) {
  document.getElementById("announcer").textContent = message;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch { // there is no clipboard where an address is neither localhost nor behind TLS
    const field = element("textarea", { value: text });
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}
