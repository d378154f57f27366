//! Formats and parses dates in HTTP headers, in all formats that clients may use in `X-Kt-Xt`.

use super::number::{hexadecimal, integer, starts_with, without_blanks};

const DAY_S: i64 = 86_400;
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The named time zones, in hours east of Greenwich.
const ZONES: [(&[u8], i64); 13] = [
    (b"JST", 9),
    (b"KST", 9),
    (b"CCT", 8),
    (b"EDT", -4),
    (b"EST", -5),
    (b"CDT", -5),
    (b"CST", -6),
    (b"MDT", -6),
    (b"MST", -7),
    (b"PDT", -7),
    (b"PST", -8),
    (b"HDT", -9),
    (b"HST", -10),
];

/// The largest year. A later year is reduced to this year, and such a time means "never".
const YEAR_MAX: i64 = 100_000;

/// Formats a time for HTTP headers: `Wed, 18 May 2033 03:33:20 GMT`. `time` is in seconds since
/// 1970.
pub fn format_date(time: u64) -> String {
    let time = i64::try_from(time).unwrap_or(i64::MAX).min(YEAR_MAX * 366 * DAY_S);
    let (days, second) = (time.div_euclid(DAY_S), time.rem_euclid(DAY_S));
    let (year, month, day) = civil(days);
    format!(
        "{}, {day:02} {} {year:04} {:02}:{:02}:{:02} GMT",
        WEEKDAYS[(days % 7) as usize],
        MONTHS[month as usize - 1],
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

/// Parses the absolute time of `X-Kt-Xt` and returns it in seconds since 1970. Accepted are:
/// - a number, or a hexadecimal number after `0x`;
/// - a number with the suffix `s`, `m`, `h` or `d`;
/// - `YYYY-MM-DDThh:mm:ss[.f][+hh:mm]`, also with `/` for `-` and a blank for `T`;
/// - a date of RFC 822 or 1123 with a zone.
///
/// Returns `None`, which means never, for an invalid date and for a date that is not after 1970.
pub fn parse_date(text: &[u8]) -> Option<u64> {
    let text = without_blanks(text);
    let time = if starts_with(text, b"0x") {
        hexadecimal(text)
    } else {
        span(text).or_else(|| numeric(text)).or_else(|| named(text))?
    };
    u64::try_from(time).ok().filter(|&time| time > 0)
}

/// Parses a number with or without a unit, and returns seconds.
fn span(text: &[u8]) -> Option<i64> {
    let digits = digits(text);
    let number = integer(&text[..digits]);
    let unit = without_blanks(&text[digits..]);
    let seconds = match unit {
        [] => 1,
        [_, behind, ..] if *behind > b' ' => return None,
        [b's' | b'S', ..] => 1,
        [b'm' | b'M', ..] => 60,
        [b'h' | b'H', ..] => 3600,
        [b'd' | b'D', ..] => DAY_S,
        _ => return None,
    };
    Some(number.saturating_mul(seconds))
}

/// Parses `YYYY-MM-DDThh:mm:ss[.f][+hh:mm]`, also with `/` for `-` and a blank for `T`. A missing
/// part counts as its minimum.
fn numeric(text: &[u8]) -> Option<i64> {
    let (separator, before_time) = match text.get(4)? {
        b'-' => (b'-', b'T'),
        b'/' => (b'/', b' '),
        _ => return None,
    };
    let field = |at: usize, before: u8| {
        let is_there = text.get(at - 1) == Some(&before);
        is_there.then(|| integer(&text[at..text.len().min(at + 2)]))
    };
    let year = integer(&text[..4]);
    let month = field(5, separator).unwrap_or(1);
    let day = field(8, separator).unwrap_or(1);
    let mut seconds = 0;
    if let Some(hour) = field(11, before_time) {
        seconds += hour * 3600;
        if let Some(minute) = field(14, b':') {
            seconds += minute * 60;
            if let Some(second) = field(17, b':') {
                seconds += second;
                let mut zone = text.get(19..).unwrap_or_default();
                if let [b'.', fraction @ ..] = zone {
                    zone = &fraction[digits(fraction)..];
                }
                seconds -= offset(zone, 4).unwrap_or(0);
            }
        }
    }
    time(year, month, day, seconds)
}

/// Parses `[Wed, ]18 May 2033 03:33:20[ ZONE]`.
fn named(text: &[u8]) -> Option<i64> {
    let text = if text.get(3) == Some(&b',') { &text[4..] } else { text };
    let (day, text) = leading(text);
    let month = MONTHS.iter().position(|name| starts_with(text, name.to_ascii_lowercase().as_bytes()))?;
    let (mut year, text) = leading(&text[3..]);
    // A year of two digits counts from 1900, and so does any other year before 1969.
    if year < 1969 {
        year += 1900;
    }
    if day <= 0 {
        return None;
    }
    let mut seconds = 0;
    if text.len() >= 8 && text[2] == b':' && text[5] == b':' {
        seconds = integer(&text[..2]) * 3600 + integer(&text[3..5]) * 60 + integer(&text[6..8]);
        if let Some(zone) = text.get(9..) {
            let named = || ZONES.iter().find(|(name, _)| *name == zone).map(|(_, hours)| hours * 3600);
            seconds -= offset(zone, 3).or_else(named).unwrap_or(0);
        }
    }
    time(year, month as i64 + 1, day, seconds)
}

/// Parses `+hh:mm` or `+hhmm` and returns seconds. `minute_at` is the offset of the minutes in the
/// text.
fn offset(zone: &[u8], minute_at: usize) -> Option<i64> {
    let sign = match zone.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let hours = integer(zone.get(1..3)?);
    let minutes = integer(zone.get(minute_at..minute_at + 2)?);
    Some(sign * (hours * 3600 + minutes * 60))
}

/// Returns the number at the start of a text, and the text after it without leading blanks.
fn leading(text: &[u8]) -> (i64, &[u8]) {
    let text = without_blanks(text);
    let len = digits(text);
    (integer(&text[..len]), without_blanks(&text[len..]))
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Returns the time in seconds since 1970. Days beyond the end of a month count into the next
/// month.
fn time(year: i64, month: i64, day: i64, seconds: i64) -> Option<i64> {
    if !(1..=12).contains(&month) || !(0..=99).contains(&day) {
        return None;
    }
    Some(days(year.min(YEAR_MAX), month, day) * DAY_S + seconds)
}

/// Returns the number of days since 1970-01-01. The years of this calculation begin in March, so
/// that the leap day is the last day of a year.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + (month * 153 + 2) / 5 + day - 1 - 719_468
}

/// Returns the year, month and day that lie `days` days after 1970-01-01.
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (year * 365 + year / 4 - year / 100);
    let month = (day * 5 + 2) / 153;
    let day = day - (month * 153 + 2) / 5 + 1;
    let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next_year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_have_the_format_of_http() {
        for (time, text) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (2_000_000_000, "Wed, 18 May 2033 03:33:20 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_399, "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(format_date(time), text);
            assert_eq!(parse_date(text.as_bytes()), (time > 0).then_some(time), "{text}");
        }
    }

    #[test]
    fn formatted_dates_round_trip() {
        for day in (1..200_000).step_by(13) {
            let time = day * 86_400 + day % 86_400;
            assert_eq!(parse_date(format_date(time).as_bytes()), Some(time));
        }
    }

    #[test]
    fn all_documented_date_formats_are_accepted() {
        for text in [
            "2000000000",
            " 2000000000 ",
            "2000000000s",
            "0x77359400",
            "0X77359400",
            "2033-05-18T03:33:20",
            "2033-05-18T03:33:20Z",
            "2033-05-18T03:33:20.75",
            "2033-05-18T12:33:20+09:00",
            "2033-05-18T12:33:20.125+09:00",
            "2033-05-17T22:03:20-05:30",
            "2033/05/18 03:33:20",
            "2033/05/18 12:33:20+09:00",
            "Wed, 18 May 2033 03:33:20 GMT",
            "18 may 2033 03:33:20",
            "Wed, 18 May 2033 12:33:20 +0900",
            "Wed, 18 May 2033 12:33:20 JST",
            "Tue, 17 May 2033 22:33:20 EST",
        ] {
            assert_eq!(parse_date(text.as_bytes()), Some(2_000_000_000), "{text}");
        }
        for (text, time) in [
            ("90m", 5400),
            ("2h", 7200),
            ("3 D", 259_200),
            ("2033-05-18", 1_999_987_200),
            ("2033-05", 1_998_518_400),
            ("1 Jan 99 00:00:00 GMT", 915_148_800),
        ] {
            assert_eq!(parse_date(text.as_bytes()), Some(time), "{text}");
        }
    }

    #[test]
    fn invalid_and_non_positive_dates_mean_never() {
        for text in
            ["", " ", "0", "-5", "soon", "1969-01-01T00:00:00", "2033-13-01", "18 Foo 2033", "5x", "0x"]
        {
            assert_eq!(parse_date(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn extreme_dates_do_not_overflow() {
        for text in
            ["99999999999999999999d", "9999-99-99T99:99:99.9+99:99", "99 Dec 9223372036854775807 1:1:1"]
        {
            let _ = parse_date(text.as_bytes());
        }
        assert_eq!(format_date(u64::MAX).len(), "Wed, 18 May 20330 03:33:20 GMT".len() + 1);
    }
}
