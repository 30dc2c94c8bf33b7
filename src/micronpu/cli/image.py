"""`micronpu image`: a program as one file that firmware verifies and loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from micronpu.base.errors import FileError, OptionError
from micronpu.base.files import read_file, write_file
from micronpu.cli import console
from micronpu.cli.completion import complete_target


@console.guarded
def image(
    program: Annotated[Path, console.argument("PROGRAM.pte", "The program of `micronpu compile`.")],
    output: Annotated[Path, console.option("FILE", "The image.", "--output", "-o")],
    version: Annotated[str, console.option("X.Y.Z", "Image version; of two slots the newer is used.", "--version")],
    target: Annotated[
        str | None,
        console.option(
            "TARGET",
            "The board, see `micronpu targets`.",
            "--for",
            "-t",
            default="what the program was compiled for",
            complete=complete_target,
        ),
    ] = None,
    key: Annotated[
        Path | None,
        console.option("FILE.pem", "Sign with this private Ed25519 key.", "--key", default="no signature"),
    ] = None,
    json: console.Json = False,
    debug: console.Debug = False,
) -> None:
    """Write a program as an update image that firmware verifies and loads without a rebuild."""
    from micronpu.deploy.image import make_image

    made = make_image(
        read_file(program),
        version=version,
        target=target,
        sign=signer(key) if key is not None else None,
        source=str(program),
    )
    write_file(output, made.data)
    data: dict[str, Any] = {
        "image": str(output),
        "bytes": len(made.data),
        "program_bytes": made.program_bytes,
        "version": version,
        "accelerator": made.board.accelerator,
        "memory_mode": made.board.memory_mode,
        "method_pool_bytes": made.pools.method,
        "temporary_pool_bytes": made.pools.temporary,
        "planned_bytes": list(made.pools.planned),
        "kernels": list(made.kernels),
        "signed": made.signed,
    }
    if json:
        console.print_json(data)
        return
    signed = "signed" if made.signed else "not signed"
    summary = f"Wrote {output}: version {version}, {len(made.data):,} bytes, {signed}."
    console.output().print(Text(summary, style="bold"), soft_wrap=True)


def signer(path: Path) -> Callable[[bytes], bytes]:
    """Return a function that signs with the private key of a PEM file.

    Raises:
        OptionError: the package that signs is not installed, or the file holds no such key.
        FileError: it cannot be read.
    """
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise OptionError(
            "An image is signed with the package cryptography, which is not installed.",
            hint='pip install "micronpu[sign]"',
        ) from error
    try:
        key = load_pem_private_key(read_file(path), password=None)
    except FileError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise OptionError(
            f"{path} holds no private key that could be read: it is damaged, or has a password.",
            hint="openssl genpkey -algorithm ed25519 -out key.pem",
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise OptionError(
            f"{path} holds a key of another kind than Ed25519.", hint="openssl genpkey -algorithm ed25519 -out key.pem"
        )
    sign: Callable[[bytes], bytes] = key.sign
    return sign
