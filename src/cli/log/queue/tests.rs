use std::sync::mpsc;

use super::*;

/// Never meant to strike.
const LONG: Duration = Duration::from_mins(1);

fn bounds(room: usize, patience: Duration) -> Bounds {
    Bounds { room, patience }
}

fn lost(lines: u64) -> String {
    format!("lost {lines}\n")
}

/// Hands over what is written, each piece when it is asked for.
struct Piecewise(mpsc::SyncSender<Vec<u8>>);

impl Write for Piecewise {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A queue whose reader is only beginning to read.
fn unread(bounds: Bounds) -> (Lines, Flush, mpsc::Receiver<Vec<u8>>) {
    let (sender, reader) = mpsc::sync_channel(0);
    let (lines, flush) = Lines::new(Piecewise(sender), bounds, lost).unwrap();
    write(&lines, "first\n");
    // Taken by the thread, which now waits for the reader.
    while !lines.0.lock().bytes.is_empty() {
        thread::yield_now();
    }
    (lines, flush, reader)
}

fn write(lines: &Lines, line: &str) {
    lines.make_writer().write_all(line.as_bytes()).unwrap();
}

/// What is written until the program ends.
fn rest(lines: Lines, flush: Flush, reader: mpsc::Receiver<Vec<u8>>) -> String {
    let reading = thread::spawn(move || reader.into_iter().collect::<Vec<_>>().concat());
    drop(flush);
    drop(lines);
    String::from_utf8(reading.join().unwrap()).unwrap()
}

#[test]
fn every_line_of_every_thread_is_there_at_the_end() {
    // With little room and with much.
    for room in [64, 4 << 20] {
        let (sender, reader) = mpsc::sync_channel(0);
        let (lines, flush) = Lines::new(Piecewise(sender), bounds(room, LONG), lost).unwrap();
        let reading = thread::spawn(move || reader.into_iter().collect::<Vec<_>>().concat());
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let lines = lines.clone();
                let line = move |line| write(&lines, &format!("{thread} {line}\n"));
                thread::spawn(move || (0..200).for_each(line))
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        drop((flush, lines));
        let text = String::from_utf8(reading.join().unwrap()).unwrap();
        for thread in 0..4 {
            let of_thread: Vec<_> =
                text.lines().filter(|line| line.starts_with(&format!("{thread} "))).collect();
            let expected: Vec<_> = (0..200).map(|line| format!("{thread} {line}")).collect();
            assert_eq!(of_thread, expected, "room for {room} bytes");
        }
        assert_eq!(text.lines().count(), 800, "room for {room} bytes");
    }
}

#[test]
fn a_line_waits_for_a_reader_that_comes() {
    let (lines, flush, reader) = unread(bounds(10, LONG));
    write(&lines, "second\n");
    let late = lines.clone();
    let writer = thread::spawn(move || write(&late, "third\n"));
    assert_eq!(reader.recv().unwrap(), b"first\n");
    assert_eq!(reader.recv().unwrap(), b"second\n");
    assert_eq!(reader.recv().unwrap(), b"third\n");
    writer.join().unwrap();
    assert_eq!(rest(lines, flush, reader), "");
}

#[test]
fn a_reader_that_does_not_come_costs_lines_but_no_more_than_the_patience() {
    let (lines, flush, reader) = unread(bounds(10, Duration::from_millis(20)));
    write(&lines, "second\n");
    write(&lines, "third\n");
    assert!(lines.0.lock().stuck, "the next lines do not wait again");
    write(&lines, "fourth\n");
    assert_eq!(reader.recv().unwrap(), b"first\n");
    assert_eq!(reader.recv().unwrap(), b"second\nlost 2\n");
    assert!(!lines.0.lock().stuck);
    write(&lines, "fifth\n");
    assert_eq!(rest(lines, flush, reader), "fifth\n");
}

#[test]
fn a_line_longer_than_the_room_is_written() {
    let (lines, flush, reader) = unread(bounds(10, LONG));
    write(&lines, "a line longer than the room\n");
    assert_eq!(rest(lines, flush, reader), "first\na line longer than the room\n");
}

#[test]
fn a_panic_loses_no_line() {
    let (sender, reader) = mpsc::sync_channel(0);
    let reading = thread::spawn(move || reader.into_iter().collect::<Vec<_>>().concat());
    let ended = thread::spawn(move || {
        let (lines, _flush) = Lines::new(Piecewise(sender), Bounds::default(), lost).unwrap();
        write(&lines, "last words\n");
        std::panic::resume_unwind(Box::new("a bug"));
    });
    assert!(ended.join().is_err());
    assert_eq!(reading.join().unwrap(), b"last words\n");
}

#[test]
fn a_stream_that_is_closed_does_not_keep_the_program() {
    let (sender, reader) = mpsc::sync_channel(0);
    drop(reader);
    let (lines, flush) = Lines::new(Piecewise(sender), Bounds::default(), lost).unwrap();
    write(&lines, "unheard\n");
    drop(flush);
    assert!(lines.0.lock().done);
    write(&lines, "after the end\n");
}
