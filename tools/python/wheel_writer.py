"""Writes wheels and source archives of the package, as pip and `python -m build` ask for them (PEP 517 and 660).

It needs nothing but Python: this package has no code to compile, and is to be installed on hosts without a network.
make_wheel uses it, too.
"""

from __future__ import annotations

import base64
import hashlib
import io
import os
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any, Dict, Optional

HERE = Path(__file__).resolve().parent
NAME = "fastdecode"
PURE_TAG = "py3-none-any"


def version() -> str:
    """What the package says of itself."""
    found = re.search(r'^__version__ = "([^"]+)"$', (HERE / NAME / "__init__.py").read_text(), flags=re.M)
    assert found, "the package has no __version__"
    return found.group(1)


def metadata() -> str:
    return f"""Metadata-Version: 2.1
Name: {NAME}
Version: {version()}
Summary: Serving large language models with attention next to the memory of the KV cache
Requires-Python: >=3.8
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
"""


def package_files() -> Dict[str, Path]:
    """The package's own files by their names in a wheel."""
    files = [*sorted((HERE / NAME).glob("*.py")), HERE / NAME / "py.typed"]
    return {f"{NAME}/{file.name}": file for file in files}


def write_wheel(folder: Path, tag: str, files: Dict[str, Any]) -> str:
    """Makes a wheel of files, which are paths or bytes, by their names in it; returns its own name."""
    info = f"{NAME}-{version()}.dist-info"
    pure = "true" if tag == PURE_TAG else "false"
    contents = dict(files)
    contents[f"{info}/METADATA"] = metadata().encode()
    contents[f"{info}/WHEEL"] = (f"Wheel-Version: 1.0\nGenerator: {NAME} {version()}\nRoot-Is-Purelib: {pure}\n"
                                 f"Tag: {tag}\n").encode()
    name = f"{NAME}-{version()}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(folder / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        def add(path: str, data: bytes) -> None:
            entry = zipfile.ZipInfo(path)  # of 1980, so that equal contents give equal files
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if ".so" in path else 0o100644) << 16
            wheel.writestr(entry, data)

        for path, content in contents.items():
            data = content if isinstance(content, bytes) else Path(content).read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{path},sha256={digest},{len(data)}\n"
            add(path, data)
        add(f"{info}/RECORD", f"{record}{info}/RECORD,,\n".encode())
    return name


# ---- What pip calls
def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    return write_wheel(Path(wheel_directory), PURE_TAG, package_files())


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    return write_wheel(Path(wheel_directory), PURE_TAG, {f"_{NAME}_editable.pth": f"{HERE}\n".encode()})


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    base = f"{NAME}-{version()}"
    files = package_files()
    files.update({name: HERE / name for name in ("pyproject.toml", "wheel_writer.py")})
    with tarfile.open(os.path.join(sdist_directory, f"{base}.tar.gz"), "w:gz") as archive:
        for name, file in files.items():
            archive.add(file, f"{base}/{name}")
        info = tarfile.TarInfo(f"{base}/PKG-INFO")
        info.size = len(metadata().encode())
        archive.addfile(info, io.BytesIO(metadata().encode()))
    return f"{base}.tar.gz"
