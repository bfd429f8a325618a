"""OpenTelemetry, only where a collector is named: without OTEL_EXPORTER_OTLP_ENDPOINT nothing is even imported.

The rest is configured by the standard OTEL_* variables, which the SDK reads itself.
"""

import os
import uuid
from collections.abc import Callable


def _nothing() -> None:
    pass


def configure(room: str) -> Callable[[], None]:
    """Install tracer and meter providers that export over OTLP/HTTP; return what flushes and stops them."""
    if not os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return _nothing
    # The SDK costs 25 MiB and a quarter of a second: paid only when it is wanted.
    from opentelemetry import metrics, trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    resource = Resource.create({"service.name": f"sluicegate-{room}", "service.instance.id": str(uuid.uuid4())})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    meters = MeterProvider(resource=resource, metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())])
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)

    def shutdown() -> None:
        tracers.shutdown()
        meters.shutdown()

    return shutdown
