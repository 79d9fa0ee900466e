//! Reads as much as there is, so that a request in several TLS records comes as one piece: its body
//! is then neither waited for nor put together.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A stream whose reads go on as long as something is there and fits.
#[derive(Debug)]
pub(super) struct Eager<S> {
    stream: S,
    /// What went wrong after something had been read.
    failed: Option<io::Error>,
}

impl<S> Eager<S> {
    pub(super) const fn new(stream: S) -> Self {
        Self { stream, failed: None }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Eager<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(error) = this.failed.take() {
            return Poll::Ready(Err(error));
        }
        let start = buffer.filled().len();
        ready!(Pin::new(&mut this.stream).poll_read(context, buffer))?;
        let mut end = start;
        while buffer.filled().len() > end && buffer.remaining() > 0 {
            end = buffer.filled().len();
            match Pin::new(&mut this.stream).poll_read(context, buffer) {
                // Not before what is here has been handed over.
                Poll::Ready(Err(error)) => this.failed = Some(error),
                Poll::Ready(Ok(())) | Poll::Pending => {}
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Eager<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// One of these at each read; pending when there are none left.
    struct Pieces(VecDeque<io::Result<&'static [u8]>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            let Some(piece) = self.0.pop_front() else { return Poll::Pending };
            let piece = piece?;
            let (now, later) = piece.split_at(piece.len().min(buffer.remaining()));
            buffer.put_slice(now);
            if !later.is_empty() {
                self.0.push_front(Ok(later));
            }
            Poll::Ready(Ok(()))
        }
    }

    fn eager(pieces: impl IntoIterator<Item = io::Result<&'static [u8]>>) -> Eager<Pieces> {
        Eager::new(Pieces(pieces.into_iter().collect()))
    }

    /// What one read gives, if it gives something at once.
    fn read(stream: &mut Eager<Pieces>, room: usize) -> Option<io::Result<Vec<u8>>> {
        let mut bytes = vec![0; room];
        let result = futures_util::FutureExt::now_or_never(stream.read(&mut bytes))?;
        Some(result.map(|length| bytes[..length].to_vec()))
    }

    #[test]
    fn what_is_there_comes_at_once() {
        let mut stream = eager([Ok(&b"ab"[..]), Ok(b"cde"), Ok(b"f")]);
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"abcdef");
        assert!(read(&mut stream, 100).is_none());
    }

    #[test]
    fn no_more_than_fits() {
        let mut stream = eager([Ok(&b"ab"[..]), Ok(b"cde")]);
        assert_eq!(read(&mut stream, 3).unwrap().unwrap(), b"abc");
        assert_eq!(read(&mut stream, 3).unwrap().unwrap(), b"de");
    }

    #[test]
    fn an_end_or_an_error_comes_after_what_was_before_it() {
        let mut stream = eager([Ok(&b"ab"[..]), Err(io::Error::other("gone")), Ok(b"")]);
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"ab");
        assert_eq!(read(&mut stream, 100).unwrap().unwrap_err().to_string(), "gone");
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"");
        let mut stream = eager([Ok(&b"ab"[..]), Ok(b""), Ok(b"")]);
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"ab");
        assert_eq!(read(&mut stream, 100).unwrap().unwrap(), b"");
    }
}
