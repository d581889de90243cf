/** Put a text on the clipboard. Browsers offer the modern way only on https and on this machine's own addresses. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard !== undefined) {
    await navigator.clipboard.writeText(text);
    return;
  }
  const field = document.createElement('textarea');
  field.value = text;
  field.readOnly = true;
  field.className = 'visually-hidden';
  // A modal dialog makes everything outside of it inert, so the field must be inside.
  const parent = document.querySelector('dialog[open]') ?? document.body;
  const focused = document.activeElement;
  parent.append(field);
  field.select();
  const isCopied = document.execCommand('copy');
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  if (!isCopied) throw new Error('This browser does not let the page copy. Mark the text and copy it yourself.');
}
