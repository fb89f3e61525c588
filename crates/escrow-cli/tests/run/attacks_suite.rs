//! A hostile program that tries whatever it can think of, one attempt after the other: none of them has an effect outside.
//!
//! Each attempt is a line of shell that succeeds if it got what it must not have. What lies outside is looked at before and
//! after, so that an attempt that is wrong about itself is found too.

use crate::attacks::{Scene, compile};
use crate::*;

/// Files that are not the plan's: what is done to each.
const TO_FILES: &[&str] = &[
    "echo evil > F",
    "echo evil >> F",
    ": > F",
    "rm F",
    "mv F stolen",
    "mv F F.away",
    "chmod 4777 F",
    "touch -d 1999-01-01 F && test $(stat -c %Y F) -lt 1000000000",
    "truncate -s 0 F",
    "ln F hard && echo evil > hard",
    "ln -sfn /tmp F",
    "sed -i s/./x/ F",
    "dd if=/dev/zero of=F bs=1 count=1 conv=notrunc",
    "setfattr -n user.evil -v 1 F",
    "cp /dev/null F",
    "install -m 777 /dev/null F",
    "mv a.txt F",
    "echo evil > /proc/self/ROOT",
    "echo evil > /proc/1/ROOT",
    "echo evil > /proc/self/cwd/../../../../../../../../F",
];

const FILES: &[&str] = &["$ESCROW_BESIDE/file", "/etc/hostname", "/etc/passwd"];

/// Everything else.
const OTHERS: &str = r#"
mkdir $ESCROW_BESIDE/new
mkdir /etc/evil
mkdir /usr/local/bin/evil
mknod node b 7 0
mknod /dev/sda b 8 0
mknod /tmp/mem c 1 1
echo evil > /usr/bin/evil
touch /evil
touch /var/evil
touch /boot/evil
rmdir $ESCROW_BESIDE
rm -rf $ESCROW_BESIDE && ! test -e $ESCROW_BESIDE
mv $ESCROW_BESIDE ../moved
mv $ESCROW_BESIDE/.. ../moved
cd $ESCROW_BESIDE && rm file
cat /etc/shadow | grep -q .
cat /etc/gshadow | grep -q .
cat /etc/ssh/ssh_host_*_key | grep -q .
ls -A ~root/.ssh | grep -q .
head -c 1 /dev/mem | grep -q .
head -c 1 /proc/kcore | grep -q .
head -c 1 /dev/sda | grep -q .
echo h > /proc/sysrq-trigger
test -w /proc/acpi
test -w /proc/asound
test -w /proc/scsi
echo x > /proc/sys/kernel/core_pattern
echo 1 > /proc/sys/kernel/sysrq
echo 3 > /proc/sys/vm/drop_caches
echo 0 > /proc/sys/kernel/randomize_va_space
echo evil > /proc/sys/kernel/hostname
hostname evil
echo mem > /sys/power/state
echo 1 > /sys/block/loop0/queue/rotational
mkdir /sys/fs/cgroup/evil
mkdir /sys/fs/cgroup/unified/evil
mkdir /sys/fs/cgroup/memory/evil
echo $$ > /sys/fs/cgroup/cgroup.procs
echo $$ > /sys/fs/cgroup/unified/cgroup.procs
mount -t tmpfs none /mnt
mount -t proc none /mnt
mount -t sysfs none /mnt
mount -t cgroup2 none /mnt
mount -t devtmpfs none /mnt
mount --bind / /mnt
mount --bind $ESCROW_BESIDE $PWD
mount -o remount,rw /
mount -o remount,bind,rw /
mount -o remount,rw /proc/sys
mount -o remount,bind,rw $ESCROW_BESIDE
mount --make-rshared /
mount -t overlay none -o lowerdir=/etc,upperdir=$ESCROW_BESIDE,workdir=/tmp /mnt
umount /proc
umount -l /proc
umount $PWD
umount -l $PWD
umount -l /tmp
umount -l /dev
umount -l ~/.ssh
pivot_root . .
chroot / true
swapon /tmp
losetup -f a.txt
unshare -U true
unshare -Ur true
unshare -Urm true
unshare -Un true
unshare -UC true
unshare -m true
unshare -n true
unshare -p true
unshare -i true
unshare -u true
unshare -C true
unshare -T true
nsenter -t 1 -m true
nsenter -t 1 -U true
nsenter -t 1 -p true
nsenter -t $MONITOR -m true
setpriv --reuid=1 true
setpriv --regid=12345 true
setpriv --groups=0,1,2 true
setpriv --inh-caps=+sys_admin true
su nobody -s /bin/true
sudo -n true
capsh --caps=cap_sys_admin+eip -- -c true
chown 12345 a.txt
setcap cap_sys_admin+ep a.txt
kill -0 $ESCROW_OUTSIDE
kill -9 $ESCROW_OUTSIDE
kill -STOP $ESCROW_OUTSIDE
ls /proc/$ESCROW_OUTSIDE
cat /proc/$ESCROW_OUTSIDE/environ
renice -n -5 $$
ionice -c 1 -n 0 true
chrt -f 10 true
prlimit --pid $ESCROW_OUTSIDE --nofile=10
taskset -p 1 $ESCROW_OUTSIDE
nice -n -10 sh -c 'test $(nice) -lt 0'
date -s 2001-01-01
hwclock --systohc
dmesg | grep -q .
dmesg -C
insmod a.txt
rmmod loop
modprobe dummy
reboot -f
shutdown now
kexec -l a.txt
ip link add evil type dummy
ip link set lo down
ip addr add 10.99.99.99/32 dev lo
ip route add 10.99.99.0/24 dev lo
iptables -A INPUT -j DROP
ipcs -q | grep -q $ESCROW_QUEUE
ipcrm -Q $ESCROW_QUEUE
keyctl show @s
keyctl add user evil evil @u
perf stat true
bpftool prog
strace -p 1
strace -p $MONITOR
cat /proc/1/environ | grep -q .
cat /proc/1/maps | grep -q .
readlink /proc/1/fd/0
cat /proc/$MONITOR/environ | grep -q .
echo evil > /proc/1/mem
echo evil > /proc/$MONITOR/mem
echo -1000 > /proc/self/oom_score_adj
test -S /run/docker.sock
test -S /var/run/docker.sock
test -S /run/dbus/system_bus_socket
test -n "$SSH_AUTH_SOCK"
test -n "$DBUS_SESSION_BUS_ADDRESS"
test -n "$ESCROW_HOME"
test -n "$ESCROW_A_TOKEN"
ls -A $ESCROW_STATE | grep -q .
rm -rf $ESCROW_STATE/sandboxes && ! test -d $ESCROW_STATE
sqlite3 $ESCROW_STATE/state.db .tables | grep -q .
cat ~/.ssh/* ~/.aws/* ~/.netrc | grep -q precious
escrow commit try
escrow --home $ESCROW_STATE commit try
escrow trust --yes
escrow cleanup try
./calls | grep -q .
./trace 1 | grep -q .
./trace $MONITOR | grep -q .
./trace $ESCROW_OUTSIDE | grep -q .
./tree $ESCROW_BESIDE file | grep -q .
./tree / etc/passwd | grep -q .
mkfifo $ESCROW_BESIDE/fifo
echo evil > /dev/pts/0
cat /dev/input/event0
ulimit -Hn 10000000
test -w /dev/null -a ! -c /dev/null
chmod 0 /dev/null
rm /dev/null
mv /dev/null /dev/other
chmod 0 /
chmod 0 $ESCROW_BESIDE
chattr +i $ESCROW_BESIDE/file
touch /var/spool/cron/evil
touch /etc/cron.d/evil
echo evil >> ~/../escrow-test-evil
"#;

/// How many lines of attempts there are.
fn attempts() -> Vec<String> {
    let files = FILES.iter().flat_map(|file| {
        let each = TO_FILES.iter();
        each.map(move |attempt| {
            // Behind another root the path has no slash of its own.
            let bare = file.trim_start_matches('/');
            attempt
                .replace("ROOT", &format!("root/{bare}"))
                .replace("../F", &format!("../{bare}"))
                .replace('F', file)
        })
    });
    let others = OTHERS.lines().filter(|line| !line.is_empty());
    files.chain(others.map(str::to_owned)).collect()
}

// attack D31
#[test]
fn d31_a_hostile_program_has_no_effect_outside() {
    as_user_too();
    let all = attempts();
    assert!(all.len() >= 150, "{}", all.len());
    let scene = Scene::with("overlay", |app| {
        compile(app, "calls", crate::attacks_kernel::CALLS);
        compile(app, "trace", crate::attacks::TRACE);
        compile(app, "tree", crate::attacks::TREE);
        // Each in a shell of its own, so that one that ends it does not end the others.
        let each = |line: &String| {
            let quoted = line.replace('\'', "'\\''");
            format!(
                "timeout 5 sh -c '{quoted}' > /dev/null 2>&1 < /dev/null && echo 'GOT {quoted}'\n"
            )
        };
        let lines: String = all.iter().map(each).collect();
        write(
            app.join("hostile"),
            format!("export MONITOR=$PPID\n{lines}"),
        );
    });
    let home = scene.world.dir("user-home");
    sh(
        &home,
        "mkdir -p .ssh .aws; echo precious > .ssh/id; echo precious > .aws/credentials; echo precious > .netrc",
    );
    let mut outside = Command::new("sleep")
        .arg("1000")
        .spawn()
        .expect("it starts");
    let watched = [
        "/etc/passwd",
        "/etc/hostname",
        "/etc/group",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
    ];
    let look = || {
        watched.map(|path| {
            (
                fs::read(path).ok(),
                fs::metadata(path)
                    .ok()
                    .map(|meta| (meta.mode(), meta.mtime())),
            )
        })
    };
    let (before, at_home) = (look(), signature(&home));
    let cli = scene
        .cli
        .clone()
        .env("HOME", &home)
        .env("ESCROW_OUTSIDE", outside.id().to_string());
    let cli = cli
        .env("ESCROW_STATE", scene.world.home())
        .env("ESCROW_QUEUE", "0xe5c0")
        .env("ESCROW_A_TOKEN", "precious");
    let cli = cli
        .env("SSH_AUTH_SOCK", "/run/agent")
        .env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/run/bus");
    let outcome = cli.run("run --plan try --network none -- sh ./hostile");
    // What root may do in a container: to its own processes, and to files of the sandbox.
    let own = [
        "setpriv --reuid=1 true",
        "setpriv --groups=0,1,2 true",
        "su nobody -s /bin/true",
        "chown 12345 a.txt",
        "setcap cap_sys_admin+ep a.txt",
    ];
    let own = own.map(|line| format!("GOT {line}\n")).concat();
    let expected = if is_root() { own.as_str() } else { "" };
    assert_eq!(outcome.stdout_text(), expected, "{}", outcome.stderr_text());
    assert!(outside.try_wait().expect("it is ours").is_none(), "killed");
    let state = read(format!("/proc/{}/stat", outside.id()));
    assert!(state.contains(" S "), "{state}");
    outside
        .kill()
        .and_then(|()| outside.wait())
        .expect("it is ours");
    assert_eq!(before, look());
    unchanged(&at_home, &home);
    scene.unharmed();
}
