"""Webhooks: where alerts are delivered, and the secrets deliveries are signed with."""
