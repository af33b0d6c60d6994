"""The proxy on other transports: TLS and unix sockets."""

import asyncio
import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from proxy_harness import (
    OK,
    answering,
    client_of,
    proxy_to,
    raw_upstream,
)

pytestmark = pytest.mark.asyncio


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that vouches for itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / "cert.pem", folder / "key.pem"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return cert_file, key_file


async def test_it_serves_tls_and_says_so_upstream(certificate: tuple[Path, Path]) -> None:
    heads: list[Any] = []
    cert, key = certificate
    trusting = ssl.create_default_context(cafile=str(cert))
    async with (
        raw_upstream(answering(OK, heads)) as url,
        proxy_to(url, ssl_cert=str(cert), ssl_key=str(key)) as proxy,
        client_of(proxy, tls=trusting) as client,
    ):
        client.get()
        assert (await client.answer())[2] == b"ok"
    assert dict(heads[0][1])["x-forwarded-proto"] == "https"


def tls_server(certificate: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*map(str, certificate))
    return context


async def test_with_internal_ssl_upstreams_are_spoken_to_with_the_hubs_certificates(
    certificate: tuple[Path, Path],
) -> None:
    cert, key = map(str, certificate)
    server = tls_server(certificate)
    server.load_verify_locations(cert)
    server.verify_mode = ssl.CERT_REQUIRED
    app = SimpleNamespace(
        internal_ssl=True,
        internal_proxy_certs={"proxy-client": {"keyfile": key, "certfile": cert, "cafile": cert}},
        internal_trust_bundles={"proxy-client-ca": cert},
    )
    async with (
        raw_upstream(answering(OK), tls=server) as url,
        proxy_to(url, app=app) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[2] == b"ok"


async def test_an_upstream_with_an_untrusted_certificate_is_not_spoken_to(
    certificate: tuple[Path, Path],
) -> None:
    heads: list[Any] = []
    async with (
        raw_upstream(answering(OK, heads), tls=tls_server(certificate)) as url,
        proxy_to(url) as proxy,
        client_of(proxy) as client,
    ):
        client.get()
        assert (await client.answer())[0] == 503
    assert heads == []


async def test_unix_sockets_on_both_sides(tmp_path: Path) -> None:
    heads: list[Any] = []
    behind, front = tmp_path / "up.sock", tmp_path / "front.sock"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            await answering(OK, heads)(reader, writer)
        writer.close()

    server = await asyncio.start_unix_server(serve, behind)
    target = "http+unix://" + quote(str(behind), safe="")
    async with (
        proxy_to(target, public_url="http+unix://" + quote(str(front), safe="")) as proxy,
        client_of(proxy) as client,
    ):
        client.get("/", "X-Real-IP: 6.6.6.6")
        assert (await client.answer())[2] == b"ok"
    server.close()
    assert "x-real-ip" not in dict(heads[0][1])
