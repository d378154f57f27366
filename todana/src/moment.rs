//! Formats and parses times: RFC 3339 or Unix seconds. Options accept the form that messages use.

const MS_A_DAY: i64 = 86_400_000;

/// Formats Unix time in milliseconds as RFC 3339 in UTC. Complete seconds are written without a
/// fraction.
pub fn text(unix_ms: u64) -> String {
    let unix_ms = i64::try_from(unix_ms).unwrap_or(i64::MAX);
    let (day, ms) = (unix_ms.div_euclid(MS_A_DAY), unix_ms.rem_euclid(MS_A_DAY));
    let (year, month, day) = date_of(day);
    let (hour, minute, second, ms) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    let fraction = if ms == 0 { String::new() } else { format!(".{ms:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

/// Parses RFC 3339 with an offset, or Unix seconds. Returns Unix time in milliseconds. The error
/// describes the accepted forms.
pub fn parse(text: &str) -> Result<u64, String> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse::<u64>().ok().and_then(|seconds| seconds.checked_mul(1000));
        return seconds.ok_or_else(|| "out of range".into());
    }
    let unix_ms = rfc3339(text).ok_or(
        "neither a Unix time in seconds nor a time such as 2026-11-21T14:30:00Z or 2026-11-21T15:30:00+01:00",
    )?;
    u64::try_from(unix_ms).map_err(|_| "a time before 1970".into())
}

fn rfc3339(text: &str) -> Option<i64> {
    let (date, rest) = (text.get(..10)?, text.get(10..)?);
    let time = rest.strip_prefix(['T', 't', ' '])?;
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let zone_at = time.find(['Z', 'z', '+', '-'])?;
    let (clock, zone) = time.split_at(zone_at);
    let (clock, fraction) = clock.split_once('.').map_or((clock, None), |(clock, rest)| (clock, Some(rest)));
    let [hour, minute, second] = numbers(clock, ':', [2, 2, 2])?;
    let ms = match fraction {
        None => 0,
        Some(digits) if !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!("{:0<3}", &digits[..digits.len().min(3)]).parse::<i64>().ok()?
        }
        Some(_) => return None,
    };
    let offset_min = match zone {
        "Z" | "z" => 0,
        _ => {
            let [hours, minutes] = numbers(zone.get(1..)?, ':', [2, 2])?;
            let offset = hours * 60 + minutes;
            if hours > 23 || minutes > 59 {
                return None;
            }
            if zone.starts_with('-') { -offset } else { offset }
        }
    };
    // A leap second counts as the next second.
    let is_date = (1..=12).contains(&month) && day >= 1 && hour <= 23 && minute <= 59 && second <= 60;
    let days = days_to(year, month, day);
    // If the month does not have this day, the number of days converts back to another date.
    if !is_date || date_of(days) != (year, month, day) {
        return None;
    }
    Some(days * MS_A_DAY + ((hour * 60 + minute - offset_min) * 60 + second) * 1000 + ms)
}

/// Parses numbers that are separated by `between`. Each must have the number of digits in `digits`.
fn numbers<const N: usize>(text: &str, between: char, digits: [usize; N]) -> Option<[i64; N]> {
    let mut found = [0; N];
    let mut parts = text.split(between);
    for (into, len) in found.iter_mut().zip(digits) {
        let part = parts.next()?;
        let is_number = part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit());
        *into = is_number.then(|| part.parse().ok()).flatten()?;
    }
    parts.next().is_none().then_some(found)
}

/// Returns the number of days since 1970-01-01. Years are counted from March 1, so that the leap
/// day is the last day of a year.
fn days_to(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    // From March 1 of the year 0 to 1970-01-01 there are 719,468 days.
    year * 365 + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// Returns year, month and day.
fn date_of(days: i64) -> (i64, i64, i64) {
    // This estimate, by the mean length of a year, is wrong by one year at most.
    let mut year = 1970 + days.div_euclid(365);
    while days_to(year, 1, 1) > days {
        year -= (days_to(year, 1, 1) - days).div_euclid(366).max(1);
    }
    let month = (1..=12).rev().find(|&month| days_to(year, month, 1) <= days).unwrap_or(1);
    (year, month, days - days_to(year, month, 1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_and_written() {
        for (written, unix_ms) in [
            ("1970-01-01T00:00:00Z", 0),
            ("1999-12-31T23:59:59Z", 946_684_799_000),
            ("2000-02-29T12:00:00Z", 951_825_600_000),
            ("2026-11-21T14:30:00Z", 1_795_271_400_000),
            ("2026-11-21T14:30:00.250Z", 1_795_271_400_250),
            ("2100-03-01T00:00:00Z", 4_107_542_400_000),
        ] {
            assert_eq!(parse(written), Ok(unix_ms), "{written}");
            assert_eq!(text(unix_ms), written);
        }
        for (written, unix_ms) in [
            ("1795271400", 1_795_271_400_000),
            ("2026-11-21T15:30:00+01:00", 1_795_271_400_000),
            ("2026-11-21 09:00:00-05:30", 1_795_271_400_000),
            ("2026-11-21t14:30:00.5z", 1_795_271_400_500),
        ] {
            assert_eq!(parse(written), Ok(unix_ms), "{written}");
        }
    }

    #[test]
    fn each_day_of_four_hundred_years_comes_back() {
        for day in 0..146_097 {
            let (year, month, of_month) = date_of(day);
            assert_eq!(days_to(year, month, of_month), day);
        }
    }

    #[test]
    fn invalid_time_is_refused() {
        for text in [
            "",
            "yesterday",
            "2026-11-21",
            "2026-11-21T14:30:00",
            "2026-11-21T14:30Z",
            "2026-02-29T00:00:00Z",
            "2026-13-01T00:00:00Z",
            "2026-11-21T24:00:00Z",
            "2026-11-21T14:30:00.Z",
            "2026-11-21T14:30:00+1:00",
            "1969-12-31T23:59:59Z",
            "-1",
            "99999999999999999999",
            "２026-11-21T14:30:00Z",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
