"""What the admin API answers when it refuses: one shape that says what is wrong and what to do."""

from http import HTTPStatus
from typing import Final

from pydantic import BaseModel, Field

_PLURALS: Final = {"delivery": "deliveries"}


class FieldProblem(BaseModel):
    """What is wrong with one field of the request."""

    field: str = Field(description="Path of the field, joined with dots.", examples=["name"])
    message: str = Field(examples=["Input should be a valid string"])


class ErrorDetail(BaseModel):
    """Why a request was refused."""

    code: str = Field(description="Stable, for programs.", examples=["not_found"])
    message: str = Field(description="What is wrong.", examples=["There is no team tea_06f3…"])
    advice: str = Field(description="What to do.", examples=["Check the id; GET /api/teams lists what exists."])
    fields: list[FieldProblem] = Field(default=[], description="The fields that are wrong, if it is about fields.")


class ErrorAnswer(BaseModel):
    """The body of every answer of 400 and above."""

    error: ErrorDetail


class AdminError(Exception):
    """The root of the refusals of this room."""

    status: int = HTTPStatus.INTERNAL_SERVER_ERROR
    code: str = "internal_error"

    def __init__(self, message: str, advice: str, *, fields: tuple[tuple[str, str], ...] = ()) -> None:
        """`fields`: (path, what is wrong) of the request's fields."""
        super().__init__(message)
        self.message = message
        self.advice = advice
        self.fields = fields

    def answer(self) -> ErrorAnswer:
        """Return the body."""
        fields = [FieldProblem(field=field, message=message) for field, message in self.fields]
        return ErrorAnswer(error=ErrorDetail(code=self.code, message=self.message, advice=self.advice, fields=fields))


class UnauthenticatedError(AdminError):
    """No token, or a wrong one."""

    status = HTTPStatus.UNAUTHORIZED
    code = "unauthenticated"


class NotFoundError(AdminError):
    """The record in the path does not exist (any more)."""

    status = HTTPStatus.NOT_FOUND
    code = "not_found"

    def __init__(self, noun: str, record_id: str) -> None:
        super().__init__(
            f"There is no {noun} {record_id}.",
            f"Check the id; GET /api/{_PLURALS.get(noun, noun + 's')} lists what exists.",
        )


class InvalidError(AdminError):
    """A field holds what it must not hold."""

    status = HTTPStatus.UNPROCESSABLE_ENTITY
    code = "invalid_request"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(
            f"{field}: {message}", "Correct the field and send the request again.", fields=((field, message),)
        )


class UnknownReferenceError(InvalidError):
    """A field names a record that does not exist."""

    code = "unknown_reference"

    def __init__(self, field: str, noun: str, record_id: str) -> None:
        super().__init__(field, f"There is no {noun} {record_id}")


class ConflictError(AdminError):
    """The request is fine, but not with the present state."""

    status = HTTPStatus.CONFLICT
    code = "conflict"


class NameTakenError(ConflictError):
    """A name that must be unique is in use."""

    code = "name_taken"


class InUseError(ConflictError):
    """A record cannot go while others need it."""

    code = "in_use"


class VersionConflictError(ConflictError):
    """The record changed after the caller read it."""

    code = "version_conflict"


class KeyRevokedError(ConflictError):
    """A revoked key stays as it is."""

    code = "key_revoked"


class UnavailableError(AdminError):
    """Something this service needs is away."""

    status = HTTPStatus.SERVICE_UNAVAILABLE
    code = "database_unavailable"


class EventsUnavailableError(UnavailableError):
    """A command cannot be handed over: NATS is away."""

    code = "events_unavailable"

    def __init__(self) -> None:
        super().__init__("NATS does not answer, so nothing was sent.", "Try again when it is back.")


class TooManySecretsError(ConflictError):
    """A webhook has as many valid secrets as a delivery may be signed with."""

    code = "too_many_secrets"


# Unique indexes of the tables: which field, and what it collides with.
_TAKEN: Final = {
    "tenants_name": ("name", "A tenant of this name exists"),
    "departments_name": ("name", "This tenant has a department of this name"),
    "teams_name": ("name", "This tenant has a team of this name"),
    "providers_name": ("name", "A provider of this name exists there"),
    "models_name": ("name", "This provider has a model of this name"),
    "webhook_endpoints_name": ("name", "A webhook of this name exists there"),
    "routes_alias": ("alias", "A route for this alias exists there"),
}


def name_taken(constraint: str | None) -> NameTakenError:
    """Return the refusal for a breach of a unique index."""
    field, message = _TAKEN.get(constraint or "", ("name", "Such a record exists already"))
    return NameTakenError(
        f"{message}.", "Choose another one, or change the record that exists.", fields=((field, message),)
    )
