"""jinja2 set up as transformers sets it up for chat templates, with a clock that stands still.

The environment comes from transformers itself where it is installed, else from an equal set-up of our own; SOURCE says
which. Importing this module without jinja2 raises ImportError.
"""

import datetime
import json
import os
import re
import time

import jinja2
import jinja2.ext
import jinja2.sandbox

os.environ["TZ"] = "UTC"
time.tzset()

NOW = 1768480496  # 2026-01-15 12:34:56 UTC
LONGEST_ERROR = 70  # characters that are kept

try:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    import transformers.utils.chat_template_utils as transformers_templates
    from transformers import __version__ as transformers_version

    SOURCE = f"transformers {transformers_version}, jinja2 {jinja2.__version__}"
except ImportError:
    transformers_templates = None
    SOURCE = f"an equal set-up without transformers, jinja2 {jinja2.__version__}"


class FixedClock(datetime.datetime):
    """What strftime_now reads: always NOW."""

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(NOW, tz)


class GenerationTag(jinja2.ext.Extension):
    """{% generation %}: its body runs as that of a call block."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("run_body"), [], [], body).set_lineno(line)

    def run_body(self, caller):
        return caller()


class TemplateDict:
    def __call__(self, *args, **kwargs):
        return dict(*args, **kwargs)

    def fromkeys(self, *args, **kwargs):
        return dict.fromkeys(*args, **kwargs)


class TemplateNamespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):  # noqa: N805: self is among args, so that an attribute may be called self
        self, values = args[0], dict(*args[1:], **kwargs)
        for name in values:
            TemplateNamespace.refuse_underscore(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name, value):
        TemplateNamespace.refuse_underscore(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def refuse_underscore(name):
        if isinstance(name, str) and name.startswith("_"):
            raise jinja2.exceptions.SecurityError(f"a namespace does not take the attribute {name!r}")


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(format):
    return FixedClock.now().strftime(format)


def compile_without_transformers(source):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = to_json
    environment.globals.update(
        raise_exception=raise_exception, strftime_now=strftime_now, dict=TemplateDict(), namespace=TemplateNamespace
    )
    return environment.from_string(source)


def compile_template(source):
    if transformers_templates is None:
        return compile_without_transformers(source)
    transformers_templates.datetime = FixedClock
    return transformers_templates._compile_jinja_template(source)


def render(source, context):
    """{"text": ...}, or {"error": "TYPE: MESSAGE"}, with "line" if the template cannot be compiled.

    A text that UTF-8 cannot express is an error, too.
    """
    try:
        template = compile_template(source)
    except Exception as error:
        answer = {"error": described(error)}
        if isinstance(error, jinja2.TemplateSyntaxError):
            answer["line"] = error.lineno
        return answer
    try:
        text = template.render(**context)
        text.encode("utf-8")
        return {"text": text}
    except Exception as error:
        return {"error": described(error)}


def described(error):
    """Type and beginning of the message, without addresses in memory."""
    message = re.sub(r" at 0x[0-9a-f]+", "", str(error)).split("\n")[0]
    return f"{type(error).__name__}: {message}"[:LONGEST_ERROR]
