"""The seccomp filter: a small interpreter runs the program for any call, as the kernel does."""

import errno
import platform
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apexbridge.sandbox.models import LaunchError
from apexbridge.sandbox.seccomp import filter_program, refused_numbers
from tests.sandbox.properties import unhurried

ARCHITECTURE = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
FOREIGN = {"i386": 0x4000_0003, "arm": 0x4000_0028, "x86_64": 0xC000_003E, "aarch64": 0xC000_00B7, "riscv": 0xC000_00F3}
KILLED, ALLOWED, PRETENDED = "killed", "allowed", "pretended"
MAX_INSTRUCTIONS = 4096
"""The longest program that the kernel accepts."""
X32 = 0x4000_0000
LOAD, EQUAL, AT_LEAST, ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
CLONE = {"x86_64": 56, "aarch64": 220}
SOCKET = {"x86_64": 41, "aarch64": 198}
SOCKETPAIR = {"x86_64": 53, "aarch64": 199}
IOCTL = {"x86_64": 16, "aarch64": 29}
PERSONALITY = {"x86_64": 135, "aarch64": 92}
MMAP = {"x86_64": 9, "aarch64": 222}
FCNTL = {"x86_64": 72, "aarch64": 25}
SETSOCKOPT = {"x86_64": 54, "aarch64": 208}
SENDFILE = {"x86_64": 40, "aarch64": 71}
PRCTL = {"x86_64": 157, "aarch64": 167}
INOTIFY_INIT1 = {"x86_64": 294, "aarch64": 26}
CHECKED = (CLONE, SOCKET, SOCKETPAIR, IOCTL, PERSONALITY, MMAP, FCNTL, SETSOCKOPT, SENDFILE)
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK = 1, 2, 10, 16, 17, 38, 40
EVERY_NAMESPACE = {
    "time": 0x80,
    "mount": 0x0002_0000,
    "cgroup": 0x0200_0000,
    "uts": 0x0400_0000,
    "ipc": 0x0800_0000,
    "user": 0x1000_0000,
    "pid": 0x2000_0000,
    "net": 0x4000_0000,
}
THREAD = 0x003D_0F00
"""The flags with which libc starts a thread."""
machines = pytest.mark.parametrize("machine", list(ARCHITECTURE))
any_machine = st.sampled_from(list(ARCHITECTURE))
word = st.integers(min_value=0, max_value=2**64 - 1)
arguments = st.lists(word, min_size=6, max_size=6)

Instruction = tuple[int, int, int, int]


def read(code: bytes) -> list[Instruction]:
    return list(struct.iter_unpack("=HBBI", code))


def answer(
    code: bytes, machine: str, number: int, values: Sequence[int] = (), *, architecture: int | None = None
) -> str:
    """The action of the kernel for this call."""
    words = (*values, *[0] * (6 - len(values)))
    arch = ARCHITECTURE[machine] if architecture is None else architecture
    seen = struct.pack("<iIQ6Q", number - (1 << 32) if number >= 1 << 31 else number, arch, 0, *words)
    instructions, position, held = read(code), 0, 0
    while True:
        kind, if_true, if_false, value = instructions[position]
        position += 1
        if kind == LOAD:
            held = struct.unpack_from("<I", seen, value)[0]
        elif kind == EQUAL:
            position += if_true if held == value else if_false
        elif kind == AT_LEAST:
            position += if_true if held >= value else if_false
        elif kind == ANY_BIT:
            position += if_true if held & value else if_false
        elif kind == RETURN:
            break
        else:
            raise AssertionError(f"the kernel knows no instruction {kind:#x}")
    action, data = value & 0xFFFF_0000, value & 0xFFFF
    error = errno.errorcode[data] if data else PRETENDED
    return {0x8000_0000: KILLED, 0x7FFF_0000: ALLOWED, 0x0005_0000: error}[action]


@machines
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("unix_sockets", [False, True])
def test_the_program_is_valid_for_the_kernel(machine: str, network: bool, unix_sockets: bool) -> None:
    instructions = read(filter_program(machine=machine, network=network, unix_sockets=unix_sockets))
    assert len(instructions) <= MAX_INSTRUCTIONS
    for position, (kind, if_true, if_false, value) in enumerate(instructions):
        if kind == LOAD:
            assert value % 4 == 0
            assert value < 64
        elif kind in (EQUAL, AT_LEAST, ANY_BIT):
            assert position + 1 + max(if_true, if_false) < len(instructions)
        else:
            assert kind == RETURN
    assert instructions[-1][0] == RETURN


@machines
def test_every_listed_call_is_refused_with_any_arguments(machine: str) -> None:
    code = filter_program(machine=machine)
    answers = {name: answer(code, machine, number) for name, number in refused_numbers(machine).items()}
    assert set(answers.values()) == {"EPERM", "ENOSYS"}
    assert {name for name in answers if name.startswith(("io_uring", "memfd", "clone3", "shm", "mq_"))} <= {
        name for name, result in answers.items() if result == "ENOSYS"
    }
    for name in ("mount", "unshare", "setns", "bpf", "keyctl", "ptrace", "process_vm_readv", "userfaultfd"):
        assert answers[name] == "EPERM", name


@given(any_machine, arguments)
@unhurried
def test_no_arguments_make_a_refused_call_pass(machine: str, values: list[int]) -> None:
    code = filter_program(machine=machine, network=True)
    assert ALLOWED not in {answer(code, machine, number, values) for number in refused_numbers(machine).values()}


@given(any_machine, st.integers(min_value=0, max_value=1000), arguments)
@unhurried
def test_every_other_call_is_allowed_with_any_arguments(machine: str, number: int, values: list[int]) -> None:
    special = {*refused_numbers(machine).values(), *(table[machine] for table in CHECKED)}
    if number not in special:
        assert answer(filter_program(machine=machine), machine, number, values) == ALLOWED


@given(st.integers(min_value=0, max_value=X32 * 3 - 1), arguments)
@unhurried
def test_x32_calls_kill_the_process(number: int, values: list[int]) -> None:
    assert answer(filter_program(machine="x86_64"), "x86_64", X32 + number, values) == KILLED


@given(any_machine, st.sampled_from(list(FOREIGN)), st.integers(min_value=0, max_value=2**32 - 1))
@unhurried
def test_calls_of_a_foreign_architecture_kill_the_process(machine: str, foreign: str, number: int) -> None:
    if FOREIGN[foreign] != ARCHITECTURE[machine]:
        code = filter_program(machine=machine, network=True)
        assert answer(code, machine, number, architecture=FOREIGN[foreign]) == KILLED


# ------------------------------------------------------------------------------------------ calls by their arguments
@machines
@pytest.mark.parametrize("namespace", list(EVERY_NAMESPACE))
def test_no_clone_makes_a_namespace(machine: str, namespace: str) -> None:
    code, number, flag = filter_program(machine=machine, network=True), CLONE[machine], EVERY_NAMESPACE[namespace]
    assert answer(code, machine, number, [flag]) == "EPERM"
    assert answer(code, machine, number, [flag | 17]) == "EPERM"
    assert answer(code, machine, number, [2**63 | flag | THREAD]) == "EPERM"


@given(any_machine, word | word.map(lambda flags: flags & ~sum(EVERY_NAMESPACE.values())))
@unhurried
def test_a_clone_passes_exactly_when_it_makes_no_namespace(machine: str, flags: int) -> None:
    makes_one = any(flags & flag for flag in EVERY_NAMESPACE.values())
    assert (answer(filter_program(machine=machine), machine, CLONE[machine], [flags]) == ALLOWED) == (not makes_one)


@machines
@pytest.mark.parametrize("flags", [17, THREAD, 0x0120_0011, 0x4111])
def test_processes_and_threads_can_be_started(machine: str, flags: int) -> None:
    assert answer(filter_program(machine=machine), machine, CLONE[machine], [flags]) == ALLOWED


@given(any_machine, st.booleans(), st.booleans(), word, word)
@unhurried
def test_only_sockets_of_allowed_families_can_be_created(
    machine: str, network: bool, unix_sockets: bool, family: int, kind: int
) -> None:
    code = filter_program(machine=machine, network=network, unix_sockets=unix_sockets)
    allowed = {AF_UNIX} if unix_sockets else set()
    allowed |= {AF_INET, AF_INET6} if network else set()
    for each in (family, *allowed, AF_UNIX, AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, AF_ALG, AF_VSOCK):
        expected = ALLOWED if each & 0xFFFF_FFFF in allowed else "EAFNOSUPPORT"
        assert answer(code, machine, SOCKET[machine], [each, kind]) == expected


@given(any_machine, word)
@unhurried
def test_internet_sockets_are_tcp_and_udp_only(machine: str, protocol: int) -> None:
    code = filter_program(machine=machine, network=True)
    for family in (AF_INET, AF_INET6):
        for each in (0, 6, 17, 1, 58, 132, 136, 262, protocol):
            expected = ALLOWED if each & 0xFFFF_FFFF in (0, 6, 17) else "EPROTONOSUPPORT"
            assert answer(code, machine, SOCKET[machine], [family, 1, each]) == expected
    assert answer(code, machine, SOCKET[machine], [AF_UNIX, 1, protocol]) == ALLOWED


@given(any_machine, st.booleans(), st.booleans(), word)
@unhurried
def test_only_pairs_of_unix_sockets_can_be_created(
    machine: str, network: bool, unix_sockets: bool, family: int
) -> None:
    code = filter_program(machine=machine, network=network, unix_sockets=unix_sockets)
    for connected in (1, 5, 1 | 0x800, 5 | 0x80000, 1 | 0x80800):
        assert answer(code, machine, SOCKETPAIR[machine], [AF_UNIX, connected]) == ALLOWED
    datagrams = answer(code, machine, SOCKETPAIR[machine], [AF_UNIX, 2])
    assert datagrams == (ALLOWED if unix_sockets else "EPROTONOSUPPORT"), "they could be sent to a socket of the host"
    if family & 0xFFFF_FFFF != AF_UNIX:
        assert answer(code, machine, SOCKETPAIR[machine], [family]) == "EAFNOSUPPORT"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_a_run_of_the_servers_own_user_changes_neither_files_nor_processes_of_that_user(machine: str) -> None:
    column = 0 if machine == "x86_64" else 1
    code, usual = filter_program(machine=machine, metadata=False), filter_program(machine=machine)
    for number in ((91, 52), (268, 53), (280, 88)):
        assert answer(code, machine, number[column], [3]) == "pretended", (
            "fchmod, fchmodat, utimensat: it only reports success"
        )
        assert answer(usual, machine, number[column], [3]) == ALLOWED
    for number in ((93, 55), (260, 54), (188, 5)):
        assert answer(code, machine, number[column], [3]) == "EPERM", "fchown, fchownat, setxattr"
    for number, position in (((302, 261), 0), ((141, 140), 1), ((203, 122), 0)):
        for process, expected in ((0, ALLOWED), (1234, "EPERM")):
            arguments = [0, 0]
            arguments[position] = process
            assert answer(code, machine, number[column], arguments) == expected


@given(any_machine, word, word)
@unhurried
def test_terminal_input_cannot_be_injected(machine: str, file: int, request: int) -> None:
    code = filter_program(machine=machine)
    for forbidden in (0x5412, 0x541C, 2**32 | 0x5412):
        assert answer(code, machine, IOCTL[machine], [file, forbidden]) == "EPERM"
    if request & 0xFFFF_FFFF not in (0x5412, 0x541C):
        assert answer(code, machine, IOCTL[machine], [file, request]) == ALLOWED


@given(any_machine, word)
@unhurried
def test_a_personality_can_be_read_and_not_changed(machine: str, persona: int) -> None:
    code = filter_program(machine=machine)
    for harmless in (0, 0xFFFF_FFFF):
        assert answer(code, machine, PERSONALITY[machine], [harmless]) == ALLOWED
    if persona & 0xFFFF_FFFF not in (0, 0xFFFF_FFFF):
        assert answer(code, machine, PERSONALITY[machine], [persona]) == "EPERM"


MODES_AND_TIMES = {"x86_64": [90, 91, 268, 452, 132, 235, 261, 280], "aarch64": [52, 53, 452, 88]}
OWNERS_AND_ATTRIBUTES = {
    "x86_64": [92, 93, 94, 260, 188, 189, 190, 197, 198, 199, 463, 466],
    "aarch64": [55, 54, 5, 6, 7, 14, 15, 16, 463, 466],
}


@machines
def test_without_metadata_modes_owners_and_times_do_not_change(machine: str) -> None:
    usual, careful = filter_program(machine=machine), filter_program(machine=machine, metadata=False)
    for number in MODES_AND_TIMES[machine]:
        assert (answer(usual, machine, number), answer(careful, machine, number)) == (ALLOWED, PRETENDED)
    for number in OWNERS_AND_ATTRIBUTES[machine]:
        assert (answer(usual, machine, number), answer(careful, machine, number)) == (ALLOWED, "EPERM")


@given(any_machine, word, word)
@unhurried
def test_a_mapping_is_refused_exactly_if_it_could_not_be_counted(machine: str, length: int, flags: int) -> None:
    limit = 16 * 1024 * 1024
    is_anonymous_and_shared = flags & 0x21 == 0x21
    is_refused = bool(flags & 0x4_0000) or (is_anonymous_and_shared and length > limit)
    report = answer(filter_program(machine=machine, shared_bytes=limit), machine, MMAP[machine], [0, length, 3, flags])
    assert report == ("ENOMEM" if is_refused else ALLOWED)


@machines
def test_the_largest_shared_mapping_has_the_configured_size(machine: str) -> None:
    for limit in (0, 4096, 16 << 20, 1 << 30):
        code = filter_program(machine=machine, shared_bytes=limit)
        answers = [answer(code, machine, MMAP[machine], [0, limit + more, 3, 0x21]) for more in (0, 1, 1 << 32)]
        assert answers == [ALLOWED, "ENOMEM", "ENOMEM"]
        assert answer(code, machine, MMAP[machine], [0, limit + 1, 3, 0x22]) == ALLOWED


@machines
def test_socket_filters_are_refused_and_other_options_with_the_same_number_work(machine: str) -> None:
    code = filter_program(machine=machine, network=True)
    for option in (26, 50, 51, 52):
        assert answer(code, machine, SETSOCKOPT[machine], [3, 1, option]) == "EPERM"
        assert answer(code, machine, SETSOCKOPT[machine], [3, 41, option]) == ALLOWED, "IPV6_V6ONLY is 26 too"
    assert answer(code, machine, SETSOCKOPT[machine], [3, 6, 31]) == "EPERM", "TLS in the kernel"
    assert answer(code, machine, SETSOCKOPT[machine], [3, 6, 1]) == ALLOWED, "TCP_NODELAY"
    assert answer(code, machine, SETSOCKOPT[machine], [3, 1, 31]) == ALLOWED


@machines
def test_calls_that_hold_uncounted_pages_are_refused(machine: str) -> None:
    code = filter_program(machine=machine)
    assert answer(code, machine, SENDFILE[machine], [1, 2, 0, 1]) == "EINVAL"
    assert [answer(code, machine, FCNTL[machine], [3, command]) for command in (6, 37, 38)] == [
        ALLOWED,
        "EINVAL",
        "EINVAL",
    ]


@machines
def test_a_run_of_the_servers_own_user_stays_readable_and_uses_no_quota_of_that_user(machine: str) -> None:
    usual, careful = filter_program(machine=machine), filter_program(machine=machine, metadata=False)
    for number, call, expected in (
        (INOTIFY_INIT1[machine], [0], "ENOSYS"),
        (PRCTL[machine], [4, 0], PRETENDED),
        (IOCTL[machine], [3, 0x4008_6602], "EPERM"),
        (IOCTL[machine], [3, 0x401C_5820], "EPERM"),
    ):
        assert (answer(usual, machine, number, call), answer(careful, machine, number, call)) == (ALLOWED, expected)
    assert answer(careful, machine, PRCTL[machine], [3]) == ALLOWED


def test_a_machine_without_a_table_of_calls_is_an_error() -> None:
    with pytest.raises(LaunchError):
        filter_program(machine="riscv64")
    assert filter_program() == filter_program(machine=platform.machine())
