// editor.js — the policy editor: CodeMirror in a shadow root, where its styles are adopted sheets and no content policy is broken.
import { defaultKeymap, history, historyKeymap, indentWithTab } from '@codemirror/commands';
import { bracketMatching, HighlightStyle, indentUnit, StreamLanguage, syntaxHighlighting } from '@codemirror/language';
import { lua } from '@codemirror/legacy-modes/mode/lua';
import { unifiedMergeView } from '@codemirror/merge';
import { Compartment, EditorState } from '@codemirror/state';
import { EditorView, highlightActiveLine, keymap, lineNumbers } from '@codemirror/view';
import { tags } from '@lezer/highlight';

// Custom properties reach into the shadow root, so that both looks follow the page.
const theme = EditorView.theme({
  '&': { height: '100%', color: 'var(--text)', backgroundColor: 'var(--surface)', fontSize: '13px' },
  '.cm-content': { fontFamily: 'var(--mono)', caretColor: 'var(--text)', padding: '8px 0' },
  '.cm-scroller': { overflow: 'auto', fontFamily: 'var(--mono)', lineHeight: '1.55' },
  '.cm-gutters': { backgroundColor: 'var(--raised)', color: 'var(--muted)', borderRight: '1px solid var(--line)' },
  '.cm-activeLine, .cm-activeLineGutter': { backgroundColor: 'color-mix(in srgb, var(--accent) 8%, transparent)' },
  '.cm-cursor': { borderLeftColor: 'var(--text)' },
  '&.cm-focused': { outline: '2px solid var(--accent)', outlineOffset: '-2px' },
  '&.cm-focused .cm-selectionBackground, .cm-selectionBackground, .cm-content ::selection': {
    backgroundColor: 'color-mix(in srgb, var(--accent) 28%, transparent)',
  },
  '.cm-changedLine': { backgroundColor: 'color-mix(in srgb, var(--pass) 14%, transparent) !important' },
  '.cm-changedText': { background: 'color-mix(in srgb, var(--pass) 30%, transparent) !important' },
  '.cm-deletedChunk': { backgroundColor: 'color-mix(in srgb, var(--fail) 14%, transparent) !important' },
  '.cm-deletedChunk .cm-deletedText': { background: 'color-mix(in srgb, var(--fail) 30%, transparent) !important' },
});
const colours = HighlightStyle.define([
  { tag: tags.keyword, color: 'var(--code-keyword)' },
  { tag: [tags.string, tags.special(tags.string)], color: 'var(--code-string)' },
  { tag: tags.number, color: 'var(--code-number)' },
  { tag: tags.comment, color: 'var(--muted)', fontStyle: 'italic' },
  { tag: tags.standard(tags.variableName), color: 'var(--accent)' },
]);

// Typed over a selection, Chromium keeps the look of what was there in a style attribute, which the content policy refuses aloud.
const typeOver = EditorView.domEventHandlers({
  beforeinput(e, view) {
    if (e.inputType !== 'insertText' || !e.data || view.composing || view.state.selection.main.empty) return false;
    e.preventDefault();
    view.dispatch(view.state.replaceSelection(e.data), { userEvent: 'input.type' });
    return true;
  },
});

/** An editor in `host` over `source`; `onedit(text)` hears every change. Returns {text, setText, compare, destroy}. */
export function edit(host, { source, label, onedit }) {
  const root = host.attachShadow({ mode: 'open' });
  const parent = root.appendChild(document.createElement('div'));
  parent.style.height = '100%';
  const diff = new Compartment();
  const view = new EditorView({
    root,
    parent,
    state: EditorState.create({
      doc: source,
      extensions: [
        lineNumbers(),
        history(),
        bracketMatching(),
        highlightActiveLine(),
        indentUnit.of('  '),
        EditorState.tabSize.of(2),
        StreamLanguage.define(lua),
        syntaxHighlighting(colours),
        theme,
        typeOver,
        diff.of([]),
        // Escape then Tab leaves the editor, as CodeMirror documents: no keyboard trap.
        keymap.of([...defaultKeymap, ...historyKeymap, indentWithTab]),
        EditorView.contentAttributes.of({ 'aria-label': label, spellcheck: 'false', tabindex: '0' }),
        EditorView.updateListener.of((u) => {
          if (u.docChanged) onedit(u.state.doc.toString());
        }),
      ],
    }),
  });
  return {
    text: () => view.state.doc.toString(),
    setText: (t) => view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: t } }),
    /** Marks the differences from `original`; null ends that. */
    compare: (original) =>
      view.dispatch({
        effects: diff.reconfigure(
          original === null ? [] : unifiedMergeView({ original, mergeControls: false, highlightChanges: true, gutter: true }),
        ),
      }),
    focus: () => view.focus(),
    destroy: () => view.destroy(),
  };
}
