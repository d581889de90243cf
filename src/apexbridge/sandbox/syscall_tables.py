"""Numbers of system calls and argument values that the seccomp filter checks, for x86-64 and arm64."""

Table = dict[str, tuple[int | None, int | None]]
"""Numbers on x86-64 and on arm64; None if the architecture does not have the call."""

# uprobe and uretprobe are missing on purpose: since Linux 6.14 the kernel makes these calls on its own, past filters,
# and kills a process that makes them itself.
FORBIDDEN: Table = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "create_module": (174, None),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "file_setattr": (469, 469),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "lsm_set_self_attr": (460, 460),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "query_module": (178, None),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysfs": (139, None),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "vhangup": (153, 58),
}
UNIMPLEMENTED: Table = {
    "clone3": (435, 435),  # its flags are in memory, which a filter cannot read; libc falls back to clone
    "get_mempolicy": (239, 236),
    "io_setup": (206, 0),  # contexts are limited for the whole host (fs.aio-max-nr)
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "listmount": (458, 458),
    "statmount": (457, 457),
    "mbind": (237, 235),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "modify_ldt": (154, None),
    "mq_open": (240, 180),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "remap_file_pages": (216, 234),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "set_mempolicy": (238, 237),
    "set_mempolicy_home_node": (450, 450),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    # A socket or pipe pins a whole page for each spliced byte, even after the file is deleted.
    "splice": (275, 76),
    "tee": (276, 77),
    "vmsplice": (278, 75),
}
METADATA: Table = {
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "futimesat": (261, None),
    "utime": (132, None),
    "utimensat": (280, 88),
    "utimes": (235, None),
}
OWNERSHIP: Table = {
    "chown": (92, None),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "fremovexattr": (199, 16),
    "fsetxattr": (190, 7),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
}
INOTIFY: Table = {"inotify_init": (253, None), "inotify_init1": (294, 26)}
COPYING: Table = {"sendfile": (40, 71)}
"""For the same reason as splice. On EINVAL, programs fall back to reading and writing."""
CLONE = (56, 220)
FCNTL = (72, 25)
IOCTL = (16, 29)
MMAP = (9, 222)
PRCTL = (157, 167)
PERSONALITY = (135, 92)
SOCKET = (41, 198)
SOCKETPAIR = (53, 199)
SETSOCKOPT = (54, 208)
OTHER_PROCESSES = (
    ((302, 261), 0),  # prlimit64
    ((141, 140), 1),  # setpriority
    ((203, 122), 0),  # sched_setaffinity
    ((142, 118), 0),  # sched_setparam
    ((144, 119), 0),  # sched_setscheduler
    ((314, 274), 0),  # sched_setattr
)
"""Calls that change a process, and the argument that identifies it; 0 is the caller."""

NAMESPACE_FLAGS = 0x7E02_0080
"""All CLONE_NEW… flags of clone."""
TERMINAL_INJECTION = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: they insert input into a terminal."""
ALLOWED_PERSONALITIES = (0, 0xFFFF_FFFF)
SET_FILE_FLAGS = (0x4008_6602, 0x4004_6602, 0x401C_5820, 0x4008_7602, 0x4004_7602)
"""FS_IOC_SETFLAGS, FS_IOC_FSSETXATTR and FS_IOC_SETVERSION."""
PR_SET_DUMPABLE = 4
OPEN_FILE_DESCRIPTION_LOCKS = (37, 38)
"""F_OFD_SETLK and F_OFD_SETLKW: the kernel records no process for such a lock, so the watchdog cannot attribute it."""
MAP_SHARED, MAP_ANONYMOUS, MAP_HUGETLB = 0x1, 0x20, 0x4_0000
SOL_SOCKET, SOL_TCP = 1, 6
TCP_ULP = 31
"""Attaches a protocol such as TLS in the kernel to a TCP socket."""
INTERNET_PROTOCOLS = (0, 6, 17)
"""The default of the socket's type, TCP, and UDP."""
SOCKET_PROGRAMS = (26, 50, 51, 52)
"""SO_ATTACH_FILTER, SO_ATTACH_BPF and the same for SO_REUSEPORT: the kernel compiles them into kernel memory whose size
is limited for the whole host."""
BUFFER_SIZES = (7, 8, 32, 33)
"""SO_SNDBUF, SO_RCVBUF and their FORCE variants: only a cgroup counts buffers, so they keep their default size."""
CONNECTED_SOCKET_TYPES = [kind | flags for kind in (1, 5) for flags in (0, 0x800, 0x8_0000, 0x8_0800)]
"""SOCK_STREAM and SOCK_SEQPACKET, with or without SOCK_CLOEXEC and SOCK_NONBLOCK."""
AF_UNIX, AF_INET, AF_INET6 = 1, 2, 10
