//! The filter of system calls that every command gets: what a command has no use for, and what would reach the kernel's
//! own state, is refused.
//!
//! A second wall. A command has no capability, so most of these are refused anyway; the filter also takes the code behind
//! them out of reach, and with it the user namespaces in which a command would have every capability again.
//!
//! Calls of 32 bits have numbers of their own and are looked up in a table of their own; calls of the x32 kind are refused
//! as unknown. `clone3` passes its flags through memory, which no filter can read: it is refused as unknown, and C libraries
//! use `clone` instead. A number that the table has and the machine has not costs nothing.

use libc::sock_filter;

/// What a filter answers to a call.
#[derive(Clone, Copy)]
enum Answer {
    /// `EPERM`.
    Denied,
    /// `ENOSYS`: programs use another call, or do without.
    Unknown,
    /// Another process looks at it first.
    Asked,
}

/// Where a call is looked at more closely.
#[derive(Clone, Copy)]
enum Test {
    /// Whatever its arguments are.
    Always,
    /// If an argument, here its low half, has any of these bits.
    Bits { argument: u32, bits: u32 },
    /// If an argument, here its low half, is this.
    Is { argument: u32, value: u32 },
    /// If an argument, here its low half, is anything else.
    IsNot { argument: u32, value: u32 },
}

struct Rule {
    call: u32,
    test: Test,
    answer: Answer,
}

/// The numbers of the calls that are filtered, for one kind of machine.
struct Calls {
    clone: u32,
    unshare: u32,
    ioctl: u32,
    /// What sets leases.
    fcntls: &'static [u32],
    socket: u32,
    socketpair: u32,
    prlimit: u32,
    /// The older call for everything about sockets, which passes its arguments through memory.
    socketcall: Option<u32>,
    /// rename, renameat and renameat2.
    renames: [u32; 3],
    connect: u32,
    /// Namespaces and mounts: what those need who make namespaces of their own.
    mounts: &'static [u32],
    /// Keys of the kernel.
    keys: &'static [u32],
    /// What no command needs.
    others: &'static [u32],
}

const NEW_USER: u32 = libc::CLONE_NEWUSER as u32;
const NEW_CGROUP: u32 = libc::CLONE_NEWCGROUP as u32;

/// What would be done to the user's terminal, and stay: typing on behalf of the user (`TIOCSTI`), also by pasting (`TIOCLINUX`),
/// another line discipline (`TIOCSETD`), by which it takes and shows nothing more; and of a console without a window
/// `KDSETMODE`, `KDSKBMODE`, `KDSKBMUTE`, `VT_SETMODE`, by which screen or keyboard are gone, and `KDFONTOP`, `VT_RESIZE`,
/// `VT_RESIZEX`, by which it has another size.
const TO_TERMINALS: [u32; 10] = [
    0x5412, 0x541C, 0x5423, 0x4B3A, 0x4B45, 0x4B51, 0x5602, 0x4B72, 0x5609, 0x560A,
];

/// `TIOCSWINSZ`: the size of a terminal.
const RESIZE: u32 = 0x5414;

/// `F_SETLEASE` and `F_SETDELEG`: processes outside that open the file would wait for the one that holds it.
const LEASES: [u32; 2] = [1024, 1040];

/// Sockets between a virtual machine and its host belong to no network namespace.
const VSOCK: u32 = libc::AF_VSOCK as u32;

/// The same number on every machine: `clone3`.
const CLONE3: u32 = 435;

/// The same numbers on every machine: open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr,
/// open_tree_attr.
const NEW_MOUNTS: [u32; 8] = [428, 429, 430, 431, 432, 433, 442, 467];

/// The same numbers on every machine: io_uring_setup, io_uring_enter, io_uring_register, quotactl_fd.
const NEW_OTHERS: [u32; 4] = [425, 426, 427, 443];

const NATIVE: Calls = Calls {
    clone: libc::SYS_clone as u32,
    unshare: libc::SYS_unshare as u32,
    ioctl: libc::SYS_ioctl as u32,
    fcntls: &[libc::SYS_fcntl as u32],
    socket: libc::SYS_socket as u32,
    socketpair: libc::SYS_socketpair as u32,
    prlimit: libc::SYS_prlimit64 as u32,
    socketcall: None,
    renames: [
        RENAME,
        libc::SYS_renameat as u32,
        libc::SYS_renameat2 as u32,
    ],
    connect: libc::SYS_connect as u32,
    mounts: &[
        libc::SYS_mount as u32,
        libc::SYS_umount2 as u32,
        libc::SYS_pivot_root as u32,
        libc::SYS_setns as u32,
    ],
    keys: &[
        libc::SYS_add_key as u32,
        libc::SYS_request_key as u32,
        libc::SYS_keyctl as u32,
    ],
    others: &[
        libc::SYS_bpf as u32,
        libc::SYS_perf_event_open as u32,
        libc::SYS_userfaultfd as u32,
        libc::SYS_kexec_load as u32,
        KEXEC_FILE_LOAD,
        libc::SYS_init_module as u32,
        libc::SYS_finit_module as u32,
        libc::SYS_delete_module as u32,
        libc::SYS_open_by_handle_at as u32,
        libc::SYS_reboot as u32,
        libc::SYS_swapon as u32,
        libc::SYS_swapoff as u32,
        libc::SYS_acct as u32,
        libc::SYS_quotactl as u32,
        libc::SYS_syslog as u32,
        libc::SYS_vhangup as u32,
        libc::SYS_settimeofday as u32,
        libc::SYS_clock_settime as u32,
    ],
};

#[cfg(target_arch = "x86_64")]
const RENAME: u32 = libc::SYS_rename as u32;
#[cfg(not(target_arch = "x86_64"))]
const RENAME: u32 = u32::MAX;

#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: u32 = libc::SYS_kexec_file_load as u32;
#[cfg(not(target_arch = "x86_64"))]
const KEXEC_FILE_LOAD: u32 = 294;

/// This machine, as the kernel names it to a filter, and the 32-bit one whose programs it also runs.
#[cfg(target_arch = "x86_64")]
const MACHINES: (u32, u32) = (0xC000_003E, 0x4000_0003);
#[cfg(not(target_arch = "x86_64"))]
const MACHINES: (u32, u32) = (0xC000_00B7, 0x4000_0028);

/// Calls of the 32-bit x86: mount, umount, umount2, pivot_root, setns; the keys; then bpf and the others above, in the same
/// order, and vm86old, vm86, ioperm, iopl.
#[cfg(target_arch = "x86_64")]
const FOREIGN: Calls = Calls {
    clone: 120,
    unshare: 310,
    ioctl: 54,
    fcntls: &[55, 221],
    socket: 359,
    socketpair: 360,
    prlimit: 340,
    socketcall: Some(102),
    renames: [38, 302, 353],
    connect: 362,
    mounts: &[21, 22, 52, 217, 346],
    keys: &[286, 287, 288],
    others: &[
        357, 336, 374, 283, 128, 350, 129, 342, 88, 87, 115, 51, 131, 103, 111, 79, 264, 404, 113,
        166, 101, 110,
    ],
};

/// Calls of the 32-bit ARM, in the same order.
#[cfg(not(target_arch = "x86_64"))]
const FOREIGN: Calls = Calls {
    clone: 120,
    unshare: 337,
    ioctl: 54,
    fcntls: &[55, 221],
    socket: 281,
    socketpair: 288,
    prlimit: 369,
    socketcall: None,
    renames: [38, 329, 382],
    connect: 283,
    mounts: &[21, 52, 218, 375],
    keys: &[309, 310, 311],
    others: &[
        386, 364, 388, 347, 401, 128, 379, 129, 371, 88, 87, 115, 51, 131, 103, 111, 79, 262, 404,
    ],
};

/// Calls that carry this bit are of the x32 kind.
#[cfg(target_arch = "x86_64")]
const X32: u32 = 0x4000_0000;

/// What a filter depends on.
#[derive(Clone, Copy)]
pub(super) struct Permitted {
    /// Whether user namespaces are.
    pub(super) userns: bool,
    /// Whether the network of the machine is.
    pub(super) network: bool,
    /// Whether a process answers when renames and sizes of terminals are asked about.
    pub(super) asked: bool,
    /// Whether that process makes connections, too.
    pub(super) connects: bool,
}

/// What is refused. Where user namespaces are allowed, so are mounts, which are made there; a cgroup namespace is not: in it
/// the cgroup of processes outside could be mounted, and those be killed or frozen.
fn rules(calls: &Calls, permitted: Permitted) -> Vec<Rule> {
    let Permitted {
        userns,
        network,
        asked,
        connects,
    } = permitted;
    let argument = |argument: u32, bits: u32| Test::Bits { argument, bits };
    let is = |argument: u32, value: u32| Test::Is { argument, value };
    let rule = |call: u32, test: Test, answer: Answer| Rule { call, test, answer };
    let mut all = Vec::new();
    for call in [calls.clone, calls.unshare] {
        all.push(rule(call, argument(0, NEW_CGROUP), Answer::Denied));
        if !userns {
            // The process that is asked denies it too, and remembers that.
            let answer = if asked { Answer::Asked } else { Answer::Denied };
            all.push(rule(call, argument(0, NEW_USER), answer));
        }
    }
    all.push(rule(CLONE3, Test::Always, Answer::Unknown));
    let denied = |call: u32, value: u32| rule(call, is(1, value), Answer::Denied);
    all.extend(TO_TERMINALS.map(|what| denied(calls.ioctl, what)));
    for call in calls.fcntls {
        all.extend(LEASES.map(|what| denied(*call, what)));
    }
    if !network {
        all.push(rule(calls.socket, is(0, VSOCK), Answer::Denied));
        let hidden = calls.socketcall.into_iter();
        all.extend(hidden.map(|call| rule(call, Test::Always, Answer::Unknown)));
    }
    let mut refuse = |calls: &[u32], answer: Answer| {
        all.extend(calls.iter().map(|call| rule(*call, Test::Always, answer)));
    };
    if !userns {
        refuse(calls.mounts, Answer::Denied);
        refuse(&NEW_MOUNTS, Answer::Denied);
    }
    // As on a kernel that has none.
    refuse(calls.keys, Answer::Unknown);
    refuse(calls.others, Answer::Denied);
    refuse(&NEW_OTHERS, Answer::Denied);
    if asked {
        refuse(&calls.renames, Answer::Asked);
        if connects {
            refuse(&[calls.connect], Answer::Asked);
        }
        all.push(rule(calls.ioctl, is(1, RESIZE), Answer::Asked));
    }
    all
}

/// What is refused where no namespace keeps what is of others out of reach: Unix sockets that can be connected, without a
/// network all sockets but those that ask the kernel about itself, and limits of another process, by which it could be ended.
fn outside_rules(calls: &Calls, network: bool) -> Vec<Rule> {
    let test = match network {
        true => Test::Is {
            argument: 0,
            value: libc::AF_UNIX as u32,
        },
        false => Test::IsNot {
            argument: 0,
            value: libc::AF_NETLINK as u32,
        },
    };
    // A pair of datagram sockets (`SOCK_DGRAM`, and `SOCK_RAW`, which means the same) can send to others by name.
    let datagrams = Test::Bits {
        argument: 1,
        bits: libc::SOCK_DGRAM as u32,
    };
    let others = Test::IsNot {
        argument: 0,
        value: 0,
    };
    let denied = [
        (calls.socket, test),
        (calls.socketpair, datagrams),
        (calls.prlimit, others),
    ];
    let denied = denied.into_iter();
    let denied = denied.map(|(call, test)| (call, test, Answer::Denied));
    let hidden = calls.socketcall.into_iter();
    let hidden = hidden.map(|call| (call, Test::Always, Answer::Unknown));
    let all = denied.chain(hidden);
    all.map(|(call, test, answer)| Rule { call, test, answer })
        .collect()
}

fn step(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

/// Loads a word of what is known of the call: its number is at 0, the machine at 4, the arguments from 16 on, each with
/// its low half first.
fn load(offset: u32) -> sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0, 0)
}

/// Goes on behind the next `skipped` steps unless the word passes the test.
fn unless(test: u32, value: u32, skipped: u8) -> sock_filter {
    step(libc::BPF_JMP | test | libc::BPF_K, value, 0, skipped)
}

fn answer(value: u32) -> sock_filter {
    step(libc::BPF_RET | libc::BPF_K, value, 0, 0)
}

fn refusal(with: Answer) -> sock_filter {
    let errno = match with {
        Answer::Denied => libc::EPERM,
        Answer::Unknown => libc::ENOSYS,
        Answer::Asked => return answer(libc::SECCOMP_RET_USER_NOTIF),
    };
    answer(libc::SECCOMP_RET_ERRNO | errno as u32)
}

/// What a call renames: what each path begins at, and the address of it.
pub(super) struct RenameCall {
    pub(super) from: (i32, u64),
    pub(super) to: (i32, u64),
    /// Whether what is at the second path is moved to the first one.
    pub(super) exchange: bool,
}

/// The calls of a machine.
fn calls_of(machine: u32) -> &'static Calls {
    match machine == MACHINES.0 {
        true => &NATIVE,
        false => &FOREIGN,
    }
}

/// Of which descriptor a call sets the size, and the address of that size.
pub(super) fn resize_of((machine, call): (u32, u32), arguments: [u64; 6]) -> Option<(i32, u64)> {
    let [fd, what, address, ..] = arguments;
    let is_resize = call == calls_of(machine).ioctl && what as u32 == RESIZE;
    is_resize.then_some((fd as i32, address))
}

/// Whether a call would make a user namespace.
pub(super) fn is_user_namespace((machine, call): (u32, u32), arguments: [u64; 6]) -> bool {
    let calls = calls_of(machine);
    [calls.clone, calls.unshare].contains(&call) && arguments[0] as u32 & NEW_USER != 0
}

/// The descriptor that a call connects, and the address and length of where to.
pub(super) fn connect_of(
    (machine, call): (u32, u32),
    arguments: [u64; 6],
) -> Option<(i32, u64, usize)> {
    let [fd, address, length, ..] = arguments;
    let is_connect = call == calls_of(machine).connect;
    is_connect.then_some((fd as i32, address, length as u32 as usize))
}

/// What a call renames, by its number on a machine, and its arguments.
pub(super) fn rename_of((machine, call): (u32, u32), arguments: [u64; 6]) -> Option<RenameCall> {
    let [a, b, c, d, flags, _] = arguments;
    let renames = calls_of(machine).renames;
    let which = renames.iter().position(|known| *known == call)?;
    let (from, to) = match which {
        0 => ((libc::AT_FDCWD, a), (libc::AT_FDCWD, b)),
        _ => ((a as i32, b), (c as i32, d)),
    };
    let exchange = which == 2 && flags as u32 & libc::RENAME_EXCHANGE != 0;
    Some(RenameCall { from, to, exchange })
}

/// Appends what is done for a call of one kind of machine.
fn look_up(program: &mut Vec<sock_filter>, rules: Vec<Rule>) {
    program.push(load(0));
    for Rule { call, test, answer } in rules {
        let refusal = refusal(answer);
        let (argument, how, value) = match test {
            Test::Always => {
                program.extend([unless(libc::BPF_JEQ, call, 1), refusal]);
                continue;
            }
            Test::Bits { argument, bits } => (argument, libc::BPF_JSET, bits),
            Test::Is { argument, value } => (argument, libc::BPF_JEQ, value),
            Test::IsNot { argument, value } => {
                let is_not = step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 1, 0);
                program.extend([
                    unless(libc::BPF_JEQ, call, 4),
                    load(16 + 8 * argument),
                    is_not,
                    refusal,
                    load(0),
                ]);
                continue;
            }
        };
        program.extend([
            unless(libc::BPF_JEQ, call, 4),
            load(16 + 8 * argument),
            unless(how, value, 1),
            refusal,
            load(0),
        ]);
    }
    program.push(answer(libc::SECCOMP_RET_ALLOW));
}

/// The filter, as the kernel takes it.
pub(super) fn program(permitted: Permitted) -> Vec<sock_filter> {
    assemble(|calls| rules(calls, permitted))
}

/// The filter beside it where there are no namespaces.
pub(super) fn outside(network: bool) -> Vec<sock_filter> {
    assemble(|calls| outside_rules(calls, network))
}

fn assemble(rules: impl Fn(&Calls) -> Vec<Rule>) -> Vec<sock_filter> {
    let mut native = Vec::new();
    #[cfg(target_arch = "x86_64")]
    native.extend([
        load(0),
        unless(libc::BPF_JGE, X32, 1),
        refusal(Answer::Unknown),
    ]);
    look_up(&mut native, rules(&NATIVE));
    let mut foreign = Vec::new();
    look_up(&mut foreign, rules(&FOREIGN));
    let length = u8::try_from(native.len()).expect("a jump reaches over the table");
    let mut program = vec![load(4), unless(libc::BPF_JEQ, MACHINES.0, length)];
    program.append(&mut native);
    program.extend([
        unless(libc::BPF_JEQ, MACHINES.1, 1),
        // Over the next step.
        step(libc::BPF_JMP | libc::BPF_JA, 1, 0, 0),
        refusal(Answer::Unknown),
    ]);
    program.append(&mut foreign);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the filter answers to a call.
    fn judge(program: &[sock_filter], machine: u32, call: u32, arguments: [u64; 2]) -> u32 {
        let word = |offset: u32| match offset {
            0 => call,
            4 => machine,
            16 => arguments[0] as u32,
            24 => arguments[1] as u32,
            other => panic!("nothing is at {other}"),
        };
        let (mut at, mut held) = (0, 0);
        loop {
            let sock_filter { code, jt, jf, k } = program[at];
            let code = u32::from(code);
            at += 1;
            let holds = match code & 0xf0 {
                _ if code & 7 == libc::BPF_RET => return k,
                _ if code & 7 == libc::BPF_LD => {
                    held = word(k);
                    continue;
                }
                libc::BPF_JA => {
                    at += k as usize;
                    continue;
                }
                libc::BPF_JEQ => held == k,
                libc::BPF_JGE => held >= k,
                libc::BPF_JSET => held & k != 0,
                other => panic!("unknown step {other:x}"),
            };
            at += usize::from(if holds { jt } else { jf });
        }
    }

    #[test]
    fn sockets_of_others_are_refused_and_own_pairs_are_not() {
        for (network, internet) in [(true, ALLOWED), (false, DENIED)] {
            let program = outside(network);
            for (machine, calls) in [(MACHINES.0, &NATIVE), (MACHINES.1, &FOREIGN)] {
                let ask = |call, arguments| judge(&program, machine, call, arguments);
                assert_eq!(ask(calls.socket, [1, 1]), DENIED);
                assert_eq!(ask(calls.socket, [2, 1]), internet);
                assert_eq!(ask(calls.socket, [10, 1]), internet);
                assert_eq!(ask(calls.socket, [16, 3]), ALLOWED);
                for (kind, answer) in [(1, ALLOWED), (5, ALLOWED), (2, DENIED), (3, DENIED)] {
                    assert_eq!(ask(calls.socketpair, [1, kind | 0x80800]), answer);
                }
                assert_eq!(ask(calls.prlimit, [0, 7]), ALLOWED);
                assert_eq!(ask(calls.prlimit, [4242, 7]), DENIED);
                if let Some(call) = calls.socketcall {
                    assert_eq!(ask(call, [1, 0]), UNKNOWN);
                }
            }
        }
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const DENIED: u32 = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
    const UNKNOWN: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;
    const ASKED: u32 = libc::SECCOMP_RET_USER_NOTIF;

    #[test]
    fn each_call_is_answered_as_it_should_be() {
        for userns in [false, true] {
            let (network, asked) = (userns, !userns);
            let program = program(Permitted {
                userns,
                network,
                asked,
                connects: asked,
            });
            let asked = if asked { ASKED } else { ALLOWED };
            let nested = if userns { ALLOWED } else { DENIED };
            let made = if userns { ALLOWED } else { ASKED };
            for (machine, calls) in [(MACHINES.0, &NATIVE), (MACHINES.1, &FOREIGN)] {
                let ask = |call, arguments| judge(&program, machine, call, arguments);
                let user = u64::from(NEW_USER);
                assert_eq!(ask(calls.unshare, [user, 0]), made);
                assert_eq!(ask(calls.clone, [user | 17, 0]), made);
                let both = user | u64::from(NEW_CGROUP);
                assert_eq!(ask(calls.clone, [both, 0]), DENIED);
                assert_eq!(ask(calls.unshare, [u64::from(NEW_CGROUP), 0]), DENIED);
                assert_eq!(ask(calls.unshare, [0x400, 0]), ALLOWED);
                assert_eq!(ask(calls.clone, [17, 0]), ALLOWED);
                assert_eq!(ask(CLONE3, [0, 0]), UNKNOWN);
                // Only the low half of an argument means anything to the kernel.
                for what in TO_TERMINALS {
                    let typed = u64::from(what) | 1 << 32;
                    assert_eq!(ask(calls.ioctl, [0, typed]), DENIED);
                }
                assert_eq!(ask(calls.ioctl, [0, 0x5413]), ALLOWED);
                let resize = u64::from(RESIZE) | 1 << 32;
                assert_eq!(ask(calls.ioctl, [0, resize]), asked);
                for call in calls.renames.iter().filter(|call| **call != u32::MAX) {
                    assert_eq!(ask(*call, [0, 0]), asked, "{call}");
                }
                assert_eq!(ask(calls.connect, [3, 0]), asked);
                for call in calls.fcntls {
                    assert_eq!(ask(*call, [0, 1024]), DENIED);
                    assert_eq!(ask(*call, [0, 1025]), ALLOWED);
                }
                let apart = if network { ALLOWED } else { DENIED };
                assert_eq!(ask(calls.socket, [u64::from(VSOCK), 1]), apart);
                assert_eq!(ask(calls.socket, [1, 1]), ALLOWED);
                if let Some(call) = calls.socketcall {
                    let hidden = if network { ALLOWED } else { UNKNOWN };
                    assert_eq!(ask(call, [1, 0]), hidden);
                }
                for call in calls.mounts.iter().chain(&NEW_MOUNTS) {
                    assert_eq!(ask(*call, [0, 0]), nested, "{call}");
                }
                for call in calls.keys {
                    assert_eq!(ask(*call, [0, 0]), UNKNOWN, "{call}");
                }
                for call in calls.others.iter().chain(&NEW_OTHERS) {
                    assert_eq!(ask(*call, [0, 0]), DENIED, "{call}");
                }
            }
            for call in [libc::SYS_read, libc::SYS_execve, libc::SYS_openat] {
                assert_eq!(judge(&program, MACHINES.0, call as u32, [0, 0]), ALLOWED);
            }
            #[cfg(target_arch = "x86_64")]
            assert_eq!(judge(&program, MACHINES.0, X32 | 514, [0, 0]), UNKNOWN);
            assert_eq!(judge(&program, 7, 0, [0, 0]), UNKNOWN);
        }
    }
}
