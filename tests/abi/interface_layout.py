"""What a C header promises to programs that are compiled already: reads it, measures it, and compares two of them.

A compiler preprocesses the header and says sizes, offsets and values; what is parsed here is only which names there
are. Anything that is not understood is an error, so that nothing escapes the comparison.
"""
import pathlib
import re
import subprocess
import tempfile


class LayoutError(Exception):
    pass


class Field:
    def __init__(self, name, type_name, array=""):
        self.name, self.type = name, type_name + array
        self.offset = self.size = None

    def __str__(self):
        return f"{self.offset:5} +{self.size:<4} {self.name}: {self.type}"


class Struct:
    def __init__(self, fields):
        self.fields, self.size = fields, None

    @property
    def grows(self):
        """Whether its callers say which version of it they know."""
        return bool(self.fields) and self.fields[0].name == "struct_size"


class Interface:
    """Of one header. Constants are those of enums and macros; texts are the rest, by names that say what each is."""

    def __init__(self):
        self.structs, self.constants, self.texts = {}, {}, {}

    def lines(self):
        for name, value in self.constants.items():
            yield f"constant {name} = {value}"
        for name, struct in self.structs.items():
            yield f"struct {name}: {struct.size} bytes"
            yield from map(str, struct.fields)
        for name, text in self.texts.items():
            yield f"{name} {text}"


WORDS_OF_TYPES = {"const", "void", "char", "short", "int", "long", "unsigned", "signed", "float", "double", "size_t"}


def tidy(type_text):
    return re.sub(r"\s*\*\s*", "*", " ".join(type_text.split())).replace("*const", "* const")


def type_of_parameter(text):
    """Without the parameter's name, which may change."""
    parts = re.match(r"^(.*?)(\b\w+)?$", text.strip(), flags=re.S)
    before, last = parts.group(1).strip(), parts.group(2) or ""
    named = bool(last) and last not in WORDS_OF_TYPES and bool(before) and before != "const"
    return tidy(before if named else text)


def parameters(text):
    return ", ".join(type_of_parameter(one) for one in text.split(","))


def read_field(text):
    """One declaration within a struct, which may have several names."""
    text = " ".join(text.split())
    pointer = re.fullmatch(r"(.+?)\(\*\s*(\w+)\)\s*\((.*)\)", text)
    if pointer:
        return [Field(pointer.group(2), f"{tidy(pointer.group(1))} (*)({parameters(pointer.group(3))})")]
    first, *others = [one.strip() for one in text.split(",")]
    declared = re.fullmatch(r"(.+[\s*])(\w+)((?:\[\w+\])*)", first)
    if not declared:
        raise LayoutError(f"a field that is not understood: {text}")
    type_name = tidy(declared.group(1))
    if others and "*" in type_name:
        raise LayoutError(f"pointers are declared one by one: {text}")
    fields = [Field(declared.group(2), type_name, declared.group(3))]
    for other in others:
        named = re.fullmatch(r"(\w+)((?:\[\w+\])*)", other)
        if not named:
            raise LayoutError(f"a field that is not understood: {text}")
        fields.append(Field(named.group(1), type_name, named.group(2)))
    return fields


def declarations(text):
    """What stands before each semicolon that is in no braces."""
    depth, start = 0, 0
    for at, letter in enumerate(text):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if letter == ";" and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    if text[start:].strip():
        raise LayoutError(f"behind the last declaration: {text[start:].strip()}")


def read_declaration(text, into):
    struct = re.fullmatch(r"typedef struct (\w+)\s*\{(.*)\}\s*(\w+)", text, flags=re.S)
    enum = re.fullmatch(r"typedef enum (\w+)\s*\{(.*)\}\s*(\w+)", text, flags=re.S)
    pointer = re.fullmatch(r"typedef (.+?)\(\*\s*(\w+)\)\s*\((.*)\)", text, flags=re.S)
    function = re.fullmatch(r"([\w\s*]+[\s*])(\w+)\s*\((.*)\)", text, flags=re.S)
    if struct:
        fields = [field for one in struct.group(2).split(";") if one.strip() for field in read_field(one)]
        into.structs[struct.group(3)] = Struct(fields)
    elif enum:
        into.texts[f"enum {enum.group(3)}:"] = None
        for one in enum.group(2).split(","):
            if one.strip():
                into.constants[one.split("=")[0].strip()] = None
    elif pointer:
        into.texts[f"type {pointer.group(2)}:"] = f"{tidy(pointer.group(1))} (*)({parameters(pointer.group(3))})"
    elif re.fullmatch(r"typedef struct (\w+)\s+\1", text):
        into.texts[f"handle {text.split()[-1]}"] = ""
    elif function:
        into.texts[f"function {function.group(2)}:"] = f"{tidy(function.group(1))} ({parameters(function.group(3))})"
    else:
        raise LayoutError(f"a declaration that is not understood: {text}")


def read_header(header, include, compiler):
    """Its names, nothing measured yet."""
    preprocessed = subprocess.run([compiler, "-std=c11", "-E", "-dD", f"-I{include}", str(header)], check=True,
                                  capture_output=True, text=True).stdout
    found, inside, own = Interface(), False, []
    for line in preprocessed.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            inside = marker.group(1) == str(header)
        elif inside and line.startswith("#define "):
            name, _, body = line.removeprefix("#define ").partition(" ")
            if "(" in name or body.startswith("{"):
                found.texts[f"macro {name}:"] = body
            elif body:  # what has none keeps a header from being read twice
                found.constants[name] = None
        elif inside and not line.startswith("#"):
            own.append(line)
    for declaration in declarations("\n".join(own)):
        read_declaration(declaration, found)
    return found


def measure(header, include, compiler="cc"):
    """What the header promises, in numbers."""
    header = pathlib.Path(header).resolve()
    found = read_header(header, include, compiler)
    code = ["#include <stdio.h>", f'#include "{header}"', "int main(void) {"]
    enums = [name.split()[1][:-1] for name in found.texts if name.startswith("enum ")]
    code += [f'  printf("constant {name} %lld\\n", (long long)({name}));' for name in found.constants]
    code += [f'  printf("enum {name} %zu\\n", sizeof({name}));' for name in enums]
    for name, struct in found.structs.items():
        code.append(f'  printf("struct {name} %zu\\n", sizeof({name}));')
        code += [f'  printf("field {name}.{field.name} %zu %zu\\n", offsetof({name}, {field.name}), '
                 f'sizeof((({name}*)0)->{field.name}));' for field in struct.fields]
    code += ["  return 0;", "}", ""]
    with tempfile.TemporaryDirectory() as folder:
        source, program = pathlib.Path(folder, "measure.c"), pathlib.Path(folder, "measure")
        source.write_text("\n".join(code))
        built = subprocess.run([compiler, "-std=c11", "-pedantic-errors", "-Wall", "-Wextra", "-Werror", f"-I{include}",
                                str(source), "-o", str(program)], capture_output=True, text=True)
        if built.returncode != 0:
            raise LayoutError(f"{header.name} is no C11:\n{built.stderr}")
        said = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    for line in said.splitlines():
        kind, name, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if kind == "constant":
            found.constants[name] = numbers[0]
        elif kind == "enum":
            found.texts[f"enum {name}:"] = f"{numbers[0]} bytes"
        elif kind == "struct":
            found.structs[name].size = numbers[0]
        else:
            struct, _, field = name.partition(".")
            measured = next(one for one in found.structs[struct].fields if one.name == field)
            measured.offset, measured.size = numbers
    return found


def struct_faults(name, frozen, current):
    if current is None:
        yield f"{name}: programs have this struct, and it is gone"
        return
    fields = {field.name: field for field in current.fields}
    for old in frozen.fields:
        new = fields.pop(old.name, None)
        if new is None:
            yield f"{name}.{old.name}: programs have this field, and it is gone"
        elif str(new) != str(old):
            yield f"{name}.{old.name}: it was '{str(old).strip()}', and is '{str(new).strip()}'"
    for new in fields.values():
        if new.offset < frozen.size:
            yield (f"{name}.{new.name}: it lies at byte {new.offset}, within the {frozen.size} bytes that programs "
                   "have of it")
    if not frozen.grows and current.size != frozen.size:
        yield f"{name}: it has no struct_size, and had {frozen.size} bytes, not {current.size}"


def growth_faults(frozen, current):
    """What keeps programs that were compiled with the one header from running with the other."""
    for name, struct in frozen.structs.items():
        yield from struct_faults(name, struct, current.structs.get(name))
    for name, value in frozen.constants.items():
        if current.constants.get(name) != value:
            yield f"{name}: it was {value}, and is {current.constants.get(name, 'gone')}"
    for name, text in frozen.texts.items():
        if current.texts.get(name) != text:
            yield f"{name} it was '{text}', and is '{current.texts.get(name, 'gone')}'"


def size_faults(interface):
    """Structs that grow consist of whole 8-byte words, two at least: the library refuses other sizes."""
    for name, struct in interface.structs.items():
        first = struct.fields[0]
        if struct.grows and (struct.size % 8 != 0 or struct.size < 16 or first.type != "uint32_t" or first.offset != 0):
            yield f"{name}: it has {struct.size} bytes, and begins with {first.type} {first.name}"
