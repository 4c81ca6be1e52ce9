"""response_format: answers are JSON of the shape asked for, whole or streamed; what is not supported is refused by name."""
import json, unittest

from support import Daemon

PERSON = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Person", "type": "object", "additionalProperties": False,
          "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 12, "description": "given name"}, "age": {"type": "integer"},
                         "mood": {"enum": ["glad", "sad", None, 3]}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2},
                         "maybe": {"type": ["boolean", "null"]}, "other": {"anyOf": [{"const": "none"}, {"type": "object", "additionalProperties": {"type": "number"}}]}},
          "required": ["name", "mood", "tags", "maybe"], "$defs": {"tag": {"type": "string", "maxLength": 4}}}


def wanted(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


class Constrained(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.d = Daemon()

    @classmethod
    def tearDownClass(cls):
        cls.d.stop()

    def ask(self, form, **more):
        return self.d.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me."}], "max_tokens": 300, "response_format": form, **more})

    def check_person(self, answer):
        self.assertEqual([k for k in PERSON["properties"] if k in answer], list(answer), "keys come in the schema's order")
        self.assertTrue(1 <= len(answer["name"]) <= 12)
        self.assertTrue(answer["mood"] in ("glad", "sad", None, 3))
        self.assertTrue(1 <= len(answer["tags"]) <= 2 and all(isinstance(t, str) and len(t) <= 4 for t in answer["tags"]))
        self.assertIn(answer["maybe"], (True, False, None))
        self.assertIsInstance(answer.get("age", 0), int)
        other = answer.get("other", "none")
        self.assertTrue(other == "none" or all(isinstance(v, (int, float)) for v in other.values()))

    def test_answers_fit_their_schema_greedy_and_sampled(self):
        ended = 0
        for i in range(6):
            status, a = self.ask(wanted(PERSON), temperature=0 if i == 0 else 1, seed=i, stop=None)
            self.assertEqual(status, 200, a)
            choice = a["choices"][0]
            if choice["finish_reason"] == "stop":
                self.check_person(json.loads(choice["message"]["content"]))
                ended += 1
        self.assertGreater(ended, 0, "no answer ended within its tokens")

    def test_small_shapes_end_by_themselves(self):
        for schema, kind in (({"enum": ["yes", "no"]}, str), ({"type": "boolean"}, bool), ({"const": {"a": [1, 2]}}, dict), ({"type": "string", "maxLength": 3}, str)):
            status, a = self.ask(wanted(schema), temperature=1, seed=5)
            self.assertEqual(status, 200, a)
            self.assertEqual(a["choices"][0]["finish_reason"], "stop", a)
            self.assertIsInstance(json.loads(a["choices"][0]["message"]["content"]), kind)

    def test_any_object(self):
        status, a = self.ask({"type": "json_object"}, temperature=0)
        self.assertEqual(status, 200, a)
        text = a["choices"][0]["message"]["content"]
        self.assertEqual(text.lstrip()[:1], "{")
        if a["choices"][0]["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(text), dict)

    def test_what_is_not_supported_is_refused_by_name(self):
        for schema, code, part in (({"type": "string", "format": "date"}, "UNSUPPORTED", "format"), ({"type": "object", "properties": {"a": {"type": "integer", "minimum": 3}}}, "UNSUPPORTED", "minimum"),
                                   ({"type": "thing"}, "BAD_ARGUMENT", "type"), ({"$ref": "#/$defs/none"}, "BAD_ARGUMENT", "$ref"), ({"enum": []}, "BAD_ARGUMENT", "enum"),
                                   ({"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}, "BAD_ARGUMENT", "nests"),
                                   ({"anyOf": [{"$ref": "#"}]}, "BAD_ARGUMENT", "no value"), ({"type": "object", "required": ["x"]}, "BAD_ARGUMENT", "required"),
                                   ({"enum": list(range(300))}, "BAD_ARGUMENT", "256"), ("text", "BAD_ARGUMENT", "schema")):
            status, a = self.ask(wanted(schema))
            self.assertEqual((status, a["error"]["code"], a["error"]["param"]), (400, code, "response_format"), a)
            self.assertIn(part, a["error"]["message"])
        deep = {"type": "string"}
        for _ in range(80):
            deep = {"type": "array", "items": deep}
        self.assertEqual(self.ask(wanted(deep))[0], 400)
        self.assertEqual(self.ask({"type": "json_object", "x": 1}, max_tokens=2)[0], 200)


if __name__ == "__main__":
    unittest.main()
