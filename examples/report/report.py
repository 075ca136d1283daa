"""A nightly report: a public CSV data set, aggregated by month and stored under a name with its period."""

import csv  # What is not imported up here while building is not in the component.
import io
import json

from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.entry import Failure
from wit_world.imports import config, http, logging
from wit_world.imports.ticks import Tick


def required(name: str) -> str:
    value = config.get(name)
    if value is None:
        raise Err(Failure(f"the config lacks `{name}`", False))
    return value


def fetch(url: str) -> str:
    answer = http.read(http.Request("GET", url, [], None, None))
    if answer.status != 200:
        raise Err(Failure(f"{url} was answered with status {answer.status}", answer.status >= 500))
    return bytes(answer.body).decode()


def by_month(text: str) -> list[dict]:
    """Days, mean highest temperature and total precipitation of each calendar month, over all years."""
    months: dict[int, list[tuple[float, float]]] = {}
    for row in csv.DictReader(io.StringIO(text)):
        month = int(row["date"].replace("/", "-").split("-")[1])
        months.setdefault(month, []).append((float(row["temp_max"]), float(row["precipitation"])))
    return [
        {
            "month": month,
            "days": len(days),
            "mean_temp_max": round(sum(high for high, _ in days) / len(days), 2),
            "precipitation": round(sum(rain for _, rain in days), 1),
        }
        for month, days in sorted(months.items())
    ]


class Entry(exports.Entry):
    def run(self, t: Tick):
        # The period is the tick's own, so a late or repeated run writes the same name.
        period = t.scheduled_local()
        months = by_month(fetch(required("data_url")))
        body = json.dumps({"period": period, "months": months}).encode()
        url = f"{required('api')}/reports/seattle-weather/{period.replace('+', '%2B')}"
        headers = [("content-type", "application/json")]
        answer = http.send(t.key("report"), http.Request("PUT", url, headers, body, None))
        if answer.status >= 300:
            raise Err(Failure(f"the report was answered with status {answer.status}", answer.status >= 500))
        logging.log(logging.Level.INFO, "stored", [("months", str(len(months))), ("url", url)])
        return f"{len(months)} months, {sum(m['days'] for m in months)} days, for {period}"
