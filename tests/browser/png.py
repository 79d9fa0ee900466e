"""Just enough of PNG to look at a screenshot: eight bits a channel, RGB or RGBA, not interlaced."""

import itertools
import struct
import zlib

MAGIC = b"\x89PNG\r\n\x1a\n"
CHANNELS = {2: 3, 6: 4}


class Picture:
    def __init__(self, data):
        self.width, self.height, self.step, packed = parts(data)
        self.rows = unfiltered(zlib.decompress(packed), self.width * self.step, self.step, self.height)

    def at(self, x, y):
        """Red, green and blue."""
        start = int(x) * self.step
        return tuple(self.rows[int(y)][start : start + 3])

    def box(self, left, top, right, bottom):
        """Each pixel whose middle may be in a box."""
        for y in range(max(0, int(top)), min(self.height, int(bottom) + 1)):
            row = self.rows[y]
            for x in range(max(0, int(left)), min(self.width, int(right) + 1)):
                yield tuple(row[x * self.step : x * self.step + 3])


def parts(data):
    if not data.startswith(MAGIC):
        raise ValueError("not a PNG")
    at, packed, header = len(MAGIC), [], None
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        if zlib.crc32(kind + body) != struct.unpack_from(">I", data, at + 8 + length)[0]:
            raise ValueError(f"the checksum of {kind!r} is wrong")
        if kind == b"IHDR":
            header = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            packed.append(body)
        at += 12 + length
    width, height, depth, colour, _, _, interlaced = header
    if depth != 8 or colour not in CHANNELS or interlaced:
        raise ValueError(f"a PNG of another sort: {header}")
    return width, height, CHANNELS[colour], b"".join(packed)


def unfiltered(raw, length, step, height):
    rows, above = [], bytes(length)
    for start in range(0, height * (length + 1), length + 1):
        above = FILTERS[raw[start]](raw[start + 1 : start + 1 + length], above, step)
        rows.append(above)
    return rows


def none(row, _above, _step):
    return row


def sub(row, _above, step):
    done = bytearray(len(row))
    for channel in range(step):
        done[channel::step] = bytes(it & 255 for it in itertools.accumulate(row[channel::step]))
    return bytes(done)


def up(row, above, _step):
    return bytes((a + b) & 255 for a, b in zip(row, above))


def average(row, above, step):
    done = bytearray(len(row))
    for at, value in enumerate(row):
        left = done[at - step] if at >= step else 0
        done[at] = (value + (left + above[at]) // 2) & 255
    return bytes(done)


def paeth(row, above, step):
    done = bytearray(len(row))
    for at, value in enumerate(row):
        left, corner = (done[at - step], above[at - step]) if at >= step else (0, 0)
        over = above[at]
        to_left, to_over, to_corner = abs(over - corner), abs(left - corner), abs(left + over - 2 * corner)
        if to_left <= to_over and to_left <= to_corner:
            guess = left
        else:
            guess = over if to_over <= to_corner else corner
        done[at] = (value + guess) & 255
    return bytes(done)


FILTERS = [none, sub, up, average, paeth]
