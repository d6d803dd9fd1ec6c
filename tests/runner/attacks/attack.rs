// A hostile function in Rust: runs the attacks that its event names, and answers how each one ended.
//
// Built by `python -m tests.runner.attacks.program`, on the standard library alone. The event is a script,
// see `script.py`. An ending is `allowed`, `E` and the number of an error, or a word of the attack itself.

use std::arch::asm;
use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{Error, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{symlink, PermissionsExt};
use std::os::unix::net::{SocketAddr as UnixAddress, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

const PREFIX: &str = "/2018-06-01/runtime";
const SOURCE: &str = env!("ATTACK_SOURCE");
const PATIENCE: Duration = Duration::from_secs(10);
const SIGCHLD: i64 = 17;
const MIB: usize = 1 << 20;

type Ending = Result<String, Error>;

fn call(number: i64, a: &[i64]) -> Result<i64, Error> {
    let at = |index: usize| a.get(index).copied().unwrap_or(0);
    let result: i64;
    unsafe {
        asm!("syscall", inlateout("rax") number => result, in("rdi") at(0), in("rsi") at(1), in("rdx") at(2),
             in("r10") at(3), in("r8") at(4), in("r9") at(5), lateout("rcx") _, lateout("r11") _);
    }
    if (-4095..0).contains(&result) { Err(Error::from_raw_os_error(-result as i32)) } else { Ok(result) }
}

fn allowed<T>(result: Result<T, Error>) -> Ending {
    result.map(|_| "allowed".to_string())
}

fn fork() -> Result<i64, Error> {
    call(57, &[])
}

fn exit(status: i64) -> ! {
    let _ = call(231, &[status]);
    loop {}
}

/// How a child ended in which the action ran: `allowed`, an error, or the signal that killed it.
fn in_child(action: impl FnOnce() -> Result<i64, Error>) -> Ending {
    let child = fork()?;
    if child == 0 {
        exit(match action() { Ok(_) => 0, Err(error) => error.raw_os_error().unwrap_or(200) as i64 });
    }
    let mut status: i32 = 0;
    call(61, &[child, &mut status as *mut i32 as i64])?;
    match (status & 0x7f, status >> 8 & 0xff) {
        (0, 0) => Ok("allowed".into()),
        (0, number) => Err(Error::from_raw_os_error(number)),
        (signal, _) => Ok(format!("signal{signal}")),
    }
}

fn call_of_32_bits(number: i64) -> Result<i64, Error> {
    let result: i64;
    unsafe { asm!("push rbx", "xor ebx, ebx", "int 0x80", "pop rbx", inlateout("rax") number => result) };
    if result as i32 >= 0 { Ok(result) } else { Err(Error::from_raw_os_error(-(result as i32))) }
}

/// Without the resolver, which would need half of the C library.
fn parse(address: &str) -> Result<SocketAddr, Error> {
    address.parse().map_err(|_| Error::from_raw_os_error(22))
}

fn connect_unix(name: &str) -> Ending {
    match name.strip_prefix('@') {
        Some(name) => allowed(UnixAddress::from_abstract_name(name).and_then(|address| UnixStream::connect_addr(&address))),
        None => allowed(UnixStream::connect(name)),
    }
}

/// The status of the reply to these bytes; `closed`: none.
fn send(port: &str, message: &[u8]) -> Ending {
    let mut client = TcpStream::connect(parse(&format!("127.0.0.1:{port}"))?)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let _ = client.write_all(message);
    let _ = client.shutdown(Shutdown::Write);
    let mut reply = Vec::new();
    let mut part = [0; 4096];
    while reply.len() < 12 {
        match client.read(&mut part) {
            Ok(0) => break,
            Ok(size) => reply.extend_from_slice(&part[..size]),
            Err(error) if error.raw_os_error() == Some(11) => return Ok("silent".into()),
            Err(_) => break,
        }
    }
    Ok(String::from_utf8_lossy(reply.get(9..12).unwrap_or(b"closed")).into())
}

/// The error of the first action that fails; `allowed` if so many succeed.
fn at_most<T>(count: usize, mut action: impl FnMut() -> Result<T, Error>) -> Ending {
    for _ in 0..count {
        action()?;
    }
    Ok("allowed".into())
}

fn take_memory() -> ! {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(vec![1; MIB]);
    }
}

#[allow(unconditional_recursion)]
fn recurse(depth: u64) -> u64 {
    let area = [depth; 512];
    std::hint::black_box(&area);
    recurse(depth + 1) + area[(depth % 512) as usize]
}

/// Sends as much as the kernel takes over so many pairs of Unix or TCP sockets, which stay open; the number of bytes.
fn fill_sockets(unix: bool) -> Result<u64, Error> {
    let mut total = 0;
    let part = vec![1; 64 * 1024];
    loop {
        let (first, second): (Box<dyn AsRawFd>, i64) = if unix {
            let Ok((first, second)) = UnixStream::pair() else { return Ok(total) };
            (Box::new(first), second.into_raw_fd() as i64)
        } else {
            let Ok(server) = TcpListener::bind(parse("127.0.0.1:0")?) else { return Ok(total) };
            let Ok(first) = TcpStream::connect(server.local_addr()?) else { return Ok(total) };
            let Ok((second, _)) = server.accept() else { return Ok(total) };
            (Box::new(first), second.into_raw_fd() as i64)
        };
        let number = first.as_raw_fd() as i64;
        std::mem::forget(first);
        for end in [number, second] {
            call(72, &[end, 4, 0o4000])?; // O_NONBLOCK
            while let Ok(size) = call(1, &[end, part.as_ptr() as i64, part.len() as i64]) {
                total += size as u64;
            }
        }
    }
}

fn connections(port: &str, count: usize, message: &[u8], half_closed: bool, kept: bool) -> Ending {
    let mut clients = Vec::new();
    for _ in 0..count {
        if let Ok(mut client) = TcpStream::connect(parse(&format!("127.0.0.1:{port}"))?) {
            let _ = client.write_all(message);
            if half_closed { let _ = client.shutdown(Shutdown::Write); }
            if kept { clients.push(client); }
        }
    }
    std::mem::forget(clients);
    Ok("ok".into())
}

fn every_other_call(allowlist: &str) -> Ending {
    let listed: Vec<i64> = allowlist.split(',').filter_map(|item| item.parse().ok()).collect();
    let odd: Vec<String> = (0..1024)
        .filter(|number| !listed.contains(number))
        .filter_map(|number| match call(number, &[]) {
            Err(error) if matches!(error.raw_os_error(), Some(1) | Some(38)) => None,
            _ => Some(number.to_string()),
        })
        .collect();
    if odd.is_empty() { Err(Error::from_raw_os_error(1)) } else { Ok(format!("allowed {}", odd.join(" "))) }
}

/// The first call that is allowed, or the refusal of the last.
fn refused_each(calls: impl Iterator<Item = (i64, [i64; 4])>) -> Ending {
    let mut ending = Ok("none".to_string());
    for (number, arguments) in calls {
        ending = allowed(call(number, &arguments));
        if ending.is_ok() { return ending; }
    }
    ending
}

fn run(verb: &str, arguments: &[Vec<u8>]) -> Ending {
    let texts: Vec<String> = arguments.iter().map(|item| String::from_utf8_lossy(item).into_owned()).collect();
    let text = |index: usize| texts.get(index).map(String::as_str).unwrap_or("");
    let numbers: Vec<i64> = texts.iter().map(|item| item.parse().unwrap_or(0)).collect();
    let path = text(0);
    let c_path = CString::new(path).unwrap_or_default();
    match verb {
        "source" => Ok(SOURCE.into()),
        "read" => allowed(File::open(path)),
        "write" => allowed(OpenOptions::new().write(true).create(true).open(path)),
        "symlink" => {
            let _ = fs::remove_file("/tmp/symlink");
            symlink(path, "/tmp/symlink")?;
            allowed(File::open("/tmp/symlink"))
        }
        "link" => allowed(fs::hard_link(path, "/tmp/hard-link")),
        "unlink" => allowed(fs::remove_file(path)),
        "rename" => allowed(fs::rename(path, "/tmp/renamed")),
        "chmod" => allowed(fs::set_permissions(path, fs::Permissions::from_mode(0o6777))),
        "chown" => {
            fs::write("/tmp/owned", "x")?;
            allowed(std::os::unix::fs::chown(if path.is_empty() { "/tmp/owned" } else { path }, Some(0), Some(0)))
        }
        "truncate" => allowed(OpenOptions::new().write(true).truncate(true).open(path)),
        "mkdir" => allowed(fs::create_dir(path)),
        "touch" => allowed(call(280, &[-100, c_path.as_ptr() as i64, 0, 0])),
        "stdin" => allowed(call(91, &[0, 0o777])),
        "descriptors" => match (3..512).find(|number| call(5, &[*number, [0u8; 256].as_mut_ptr() as i64]).is_ok()) {
            Some(number) => Ok(format!("allowed {number}")),
            None => Err(Error::from_raw_os_error(9)),
        },
        "exec" => {
            let run = Command::new(path).args(&texts[1..]).env_clear().stdout(Stdio::null()).stderr(Stdio::null()).status()?;
            Ok(if run.success() { "allowed" } else { "exit" }.into())
        }
        "argv" => allowed(Command::new("/bin/true").arg("x".repeat(8 * MIB)).status()),
        "tcp" => allowed(TcpStream::connect_timeout(&parse(path)?, PATIENCE)),
        "udp" => {
            let any = if path.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
            let client = UdpSocket::bind(parse(any)?)?;
            let _ = client.set_broadcast(true);
            allowed(client.send_to(b"x", parse(path)?))
        }
        "unix" => connect_unix(path),
        "bind" => allowed(TcpListener::bind(parse(path)?)),
        "kill" => allowed(call(62, &numbers)),
        "call" => allowed(call(numbers[0], &numbers[1..])),
        "call_in_child" => in_child(|| call(numbers[0], &numbers[1..])),
        "int80" => in_child(|| call_of_32_bits(numbers[0])),
        "calls" => every_other_call(path),
        "family" => {
            let mut pair = [0i32; 2];
            let place = pair.as_mut_ptr() as i64;
            refused_each((1..6).flat_map(|kind| [(41, [numbers[0], kind, 0, 0]), (53, [numbers[0], kind, 0, place])]))
        }
        "protocol" => refused_each([2, 10].iter().flat_map(|family| (1..6).map(|kind| (41, [*family, kind, numbers[0], 0])))),
        "send" => send(path, &arguments[1]),
        "connections" => connections(path, numbers[1] as usize, &arguments[2], text(3) == "half", text(4) == "kept"),
        "forks" => loop { fork()?; },
        "threads" => at_most(100, || std::thread::Builder::new().spawn(|| loop { std::thread::sleep(PATIENCE * 60) })),
        "memory" => take_memory(),
        "children_memory" => {
            let _ = in_child(|| take_memory());
            Ok("ok".into())
        }
        "shared_memory" => loop {
            let place = call(9, &[0, 16 * MIB as i64, 3, 0x21, -1, 0])?; // shared and anonymous
            unsafe { std::ptr::write_bytes(place as *mut u8, 1, 16 * MIB) };
        },
        "disk" => {
            let mut file = File::create("/tmp/disk")?;
            loop { file.write_all(&[1; 65536])?; }
        }
        "sparse" => allowed(File::create("/tmp/sparse")?.set_len(1 << 40)),
        "inodes" => { for number in 0.. { File::create(format!("/tmp/{number}"))?; } Ok("ok".into()) }
        "files" => at_most(300, || File::open("/dev/null").map(File::into_raw_fd)),
        "queue" => {
            let mask: u64 = 1 << 33;
            call(14, &[0, &mask as *const u64 as i64, 0, 8])?;
            let mut info = [0u8; 128];
            info[0] = 34;
            info[8..12].copy_from_slice(&(-1i32).to_le_bytes()); // SI_QUEUE
            at_most(2000, || call(129, &[call(39, &[])?, 34, info.as_ptr() as i64]))
        }
        "timers" => at_most(2000, || { let mut id = 0i32; call(222, &[1, 0, &mut id as *mut i32 as i64]) }),
        "stdout" => loop { std::io::stdout().write_all(&[b'x'; 65536])?; std::io::stdout().flush()?; },
        "stderr" => loop { std::io::stderr().write_all(&[b'x'; 65536])?; },
        "answer" => Ok("x".repeat(7 * MIB)),
        "recursion" => Ok(recurse(0).to_string()),
        "busy" => loop { std::hint::spin_loop() },
        "sleep" => {
            for signal in 1..64 { let ignore = [1u64, 0, 0, 0]; let _ = call(13, &[signal, ignore.as_ptr() as i64, 0, 8]); }
            loop { std::thread::sleep(PATIENCE) }
        }
        "stop" => in_child(|| call(62, &[call(39, &[])?, 19])),
        "close" => { let _ = call(436, &[0, 0xffffffff, 0]); loop { std::hint::spin_loop() } }
        "zombies" => { for _ in 0..30 { if fork()? == 0 { exit(0) } } Ok("ok".into()) }
        "daemon" => {
            if fork()? == 0 {
                let _ = call(112, &[]);
                if fork()? != 0 { exit(0) }
                loop { std::thread::sleep(PATIENCE) }
            }
            Ok("ok".into())
        }
        "kill_all" => {
            for target in [-1, 0, 1, call(110, &[])?] { for signal in [15, 19, 9] { let _ = call(62, &[target, signal]); } }
            Ok("ok".into())
        }
        "group_priority" => { let _ = call(141, &[1, 0, 19]); Ok("ok".into()) }
        "segv" => { unsafe { std::ptr::null_mut::<u8>().write_volatile(1) }; Ok("ok".into()) }
        "exit" => exit(3),
        "unix_memory" | "tcp_memory" => {
            for _ in 0..numbers[0] {
                if call(56, &[SIGCHLD])? == 0 { let _ = fill_sockets(verb == "unix_memory"); loop { std::thread::sleep(PATIENCE) } }
            }
            loop { std::thread::sleep(PATIENCE) }
        }
        _ => Ok(format!("unknown {verb}")),
    }
}


fn decode(text: &str) -> Vec<u8> {
    (0..text.len() / 2).filter_map(|index| u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()).collect()
}

fn exchange(method: &str, path: &str, body: &[u8]) -> Result<(String, Vec<u8>), Error> {
    let mut connection = TcpStream::connect(parse(&std::env::var("AWS_LAMBDA_RUNTIME_API").expect("an address"))?)?;
    write!(connection, "{method} {PREFIX}{path} HTTP/1.1\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len())?;
    let _ = connection.write_all(body); // an answer that is too large is refused before its end
    let mut reply = Vec::new();
    let _ = connection.read_to_end(&mut reply);
    let end = reply.windows(4).position(|part| part == b"\r\n\r\n").map_or(reply.len(), |place| place + 4);
    Ok((String::from_utf8_lossy(&reply[..end]).to_lowercase(), reply[end..].to_vec()))
}

fn main() -> Result<(), Error> {
    let (head, event) = exchange("GET", "/invocation/next", b"")?;
    let id = head.split("\r\n").find_map(|line| line.strip_prefix("lambda-runtime-aws-request-id: ")).expect("an id");
    let endings: Vec<String> = String::from_utf8_lossy(&event)
        .trim_matches('"')
        .split(';')
        .map(|line| {
            let mut words = line.split(' ');
            let verb = words.next().unwrap_or("");
            let arguments: Vec<Vec<u8>> = words.map(decode).collect();
            let ending = run(verb, &arguments).unwrap_or_else(|error| format!("E{}", error.raw_os_error().unwrap_or(0)));
            format!("\"{ending}\"")
        })
        .collect();
    let path = format!("/invocation/{id}/response");
    exchange("POST", &path, format!("[{}]", endings.join(",")).as_bytes())?;
    Ok(())
}
